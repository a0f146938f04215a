"""Images without labels, as `predict` and `inspect` are given them."""

import itertools
import os
from collections.abc import Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.folder import files_of
from oneshot_dp.extract.sources.listed_files import IMAGES, ROWS, File, has_rows
from oneshot_dp.extract.sources.open_source import open_files
from oneshot_dp.extract.sources.source import Source, together


def unlabelled(paths: Sequence[str], image: str | None = None) -> Source:
  """The images of files, folders at any depth, npz, Parquet files and tars.

  They come in the order of the paths, those of a folder in that of their names
  by code point, those of a file in that of its rows. `image` is the array,
  column or extension that has them, where several can. InputError: a path is
  none of these, or has no image.
  """
  parts: list[Source] = []
  files: list[str] = []
  for path in listed_files.expanded(paths):
    if not listed_files.is_folder(path):
      files.append(path)
      continue
    found = listed_files.files_in(path)
    listed_files.refuse_broken(path, found)
    images = [f for f in found if listed_files.is_image(f.path)]
    some = images or [file for file in found if has_rows(file.path)]
    if not some:
      raise InputError(
        f"{path!r} has no images: they end in {', '.join(IMAGES)}, or are in"
        f" {', '.join(ROWS)} files."
      )
    files += [os.path.join(path, file.path) for file in some]
  for are_rows, group in itertools.groupby(files, has_rows):
    if are_rows:
      settings = SourceSettings(location=(".",), image=image)
      parts.append(open_files(settings, list(group), labelled=False))
    else:
      parts.append(images_of([listed_files.file_at(path) for path in group]))
  return together(parts)


def images_of(files: Sequence[File], root: str = "") -> Source:
  """Image files as a source without labels."""
  names = {"name": "unlabelled", "split": "all", "class_names": ("unlabelled",)}
  return files_of(root, files, [0] * len(files), **names)
