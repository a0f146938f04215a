"""`oneshot-dp inspect`."""

import dataclasses
from pathlib import Path

from tyro.conf import Positional

from oneshot_dp.pipeline.shell.answer import Answer

USES_JAX = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Print what is in a cache, or in images before they are extracted.

  Of a cache: data set, backbone, sizes, fingerprints. Of a folder of images, or
  of Parquet, Arrow and tar files: classes and their counts, sizes, duplicates,
  all images that are broken, files that are none; that is PRIVATE, and with
  --json only the names of splits and classes are said.
  Nothing is changed.

  Example: oneshot-dp inspect caches/train

  Example: oneshot-dp inspect photos
  """

  path: Positional[Path]
  """Directory of the cache, a folder with a folder of images per class, or
  Parquet, Arrow or tar files: one, or a folder that has some."""


def run(flags: Flags) -> Answer:
  """Describes it."""
  from oneshot_dp.extract.cache.info import INCOMPLETE_DIR, INFO_FILE
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.extract.cache.summary import describe, owners_metadata

  path = flags.path
  of_cache = [path / INFO_FILE, path / INCOMPLETE_DIR]
  is_folder = path.is_dir() and not any(name.exists() for name in of_cache)
  if is_folder or path.is_file():
    from oneshot_dp.pipeline.commands.data.folder_report import report_folder
    from oneshot_dp.pipeline.commands.data.table_report import (
      is_table,
      report_table,
    )

    if is_folder and (answer := report_folder(path)):
      return answer
    if is_table(path):
      return report_table(path)
  cache = open_cache(path)
  return Answer(
    text=describe(cache),
    facts={"cache": cache.path, "metadata": owners_metadata(cache)},
  )
