"""Images without labels, as `predict` and `inspect` are given them."""

from collections.abc import Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.listed_files import IMAGES, ROWS, File
from oneshot_dp.extract.sources.open_source import open_files
from oneshot_dp.extract.sources.source import Source


def unlabelled(paths: Sequence[str]) -> Source:
  """The images of files, folders at any depth, npz, Parquet files and tars.

  They come in the order of the paths, those of a folder in that of their names
  by code point, those of a file in that of its rows. InputError: a path is none
  of these, or has no image.
  """
  files: list[File] = []
  for path in listed_files.expanded(paths):
    if not listed_files.is_folder(path):
      files.append(listed_files.file_at(path))
      continue
    found = listed_files.files_in(path)
    listed_files.refuse_broken(path, found)
    images = [f for f in found if listed_files.is_image(f.path)]
    some = images or [f for f in found if listed_files.has_rows(f.path)]
    if not some:
      raise InputError(
        f"{path!r} has no images: they end in {', '.join(IMAGES)}, or are in"
        f" {', '.join(ROWS)} files."
      )
    files += [listed_files.below(path, file) for file in some]
  return images_of(files)


def images_of(files: Sequence[File], image: str | None = None) -> Source:
  """Those of files that were listed; `image` is the array that has them."""
  settings = SourceSettings(location=(".",), image=image)
  return open_files(settings, files, labelled=False)
