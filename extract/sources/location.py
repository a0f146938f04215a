"""Expands a location into the files of a data set.

`extract` and `import` share these rules. A data set of tables is one file,
several files or a folder of them; see `splits` for the split of each.
"""

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import storage
from oneshot_dp.extract.places import normalize
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.listed_files import File, format_names

_NUMBERS = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}")


def expand_location(location: Sequence[str]) -> list[str]:
  """Expands the words of a location into paths and URLs.

  A word is a path, a URL, a path from the home folder (~), a row of numbers
  (x{00..12}.tar) or a pattern (*.tar). InputError: it stands for nothing.
  """
  paths: list[str] = []
  for word in location:
    # Braces are expanded here and not by the shell, which knows nothing of
    # URLs.
    expanded: list[str] = []
    for path in expand_braces(os.path.expanduser(normalize(word))):
      expanded += expand_glob(path)
    if not expanded:
      raise InputError(f"{word!r} does not exist: give a file, folder or URL.")
    paths += expanded
  return paths


def expand_braces(word: str) -> list[str]:
  """x{08..10} as x08, x09, x10; any other word as it is.

  >>> expand_braces("{a,b}-{1..2}{08..09}")
  ['{a,b}-108', '{a,b}-109', '{a,b}-208', '{a,b}-209']
  """
  match = _NUMBERS.search(word)
  if not match:
    return [word]
  first, last = match.groups()
  words: list[str] = []
  for number in range(int(first), int(last) + 1):
    digits = str(number).zfill(len(first))
    words += expand_braces(word[: match.start()] + digits + word[match.end() :])
  return words


def expand_glob(path: str) -> list[str]:
  """The sorted paths of a pattern; one that exists, or a URL, is itself.

  InputError: nothing is there.
  """
  if storage.is_url(path) or os.path.lexists(path):
    return [path.rstrip("/") or "/"]
  storage.store_at(path)  # refuses addresses of other kinds
  matches = sorted(glob.glob(path, recursive=True))
  if not matches:
    raise InputError(f"{path!r} does not exist: give a file, folder or URL.")
  return matches


def common_folder(files: Mapping[str, File]) -> str:
  """The folder of a data set: what lies above it says nothing about its rows.

  It is the folder that a person named, or, of files, the one that they have in
  common: so `pets/label=*/*.parquet` is all of `pets`.

  Args:
    files: by their names in the data set, as `list_tables` returns them.

  Returns:
    A path or a URL; "" for the working folder.
  """
  name, file = next(iter(files.items()))
  if name != file.path:
    return file.path.removesuffix(name)
  # (commonpath would take a slash from s3://.)
  prefix = os.path.commonprefix(list(files))  # noqa: RUF071
  return os.path.dirname(prefix)


def advice(suffixes: Sequence[str]) -> str:
  """Says what a location may be, for messages."""
  return (
    "give a folder that has a folder of images for each class, or files that"
    f" end in {', '.join(suffixes)}"
  )


def list_tables(
  paths: Sequence[str], suffixes: Sequence[str]
) -> tuple[str, dict[str, File]]:
  """The name of a data set of tables, and its files by their names in it.

  Args:
    paths: one folder, or one or several files.
    suffixes: what the names of tables end in.

  Returns:
    The name: that of the folder, of the only file, or of the folder that has
    the first of several; and the files. Those of a folder are all of it, tables
    or not, by their paths in it; others are by their paths as given.

  Raises:
    InputError: a path is not a table, is given twice, or cannot be read.
  """
  parent, name = os.path.split(os.path.abspath(paths[0]))
  if len(paths) == 1:
    files = listed_files.files_in(paths[0])
    if files or os.path.isdir(paths[0]):
      listed_files.refuse_broken(paths[0], files)
      refuse_prepared(paths[0], [file.path for file in files])
      whole = {f.path: listed_files.join_folder(paths[0], f) for f in files}
      return name, whole
  else:
    name = os.path.basename(parent)
  are_tables = all(path.lower().endswith(tuple(suffixes)) for path in paths)
  if len(set(paths)) < len(paths) or not are_tables:
    raise InputError(f"{format_names(paths)}: {advice(suffixes)}, each once.")
  return name, {path: listed_files.file_at(path) for path in paths}


def refuse_prepared(folder: str, names: Iterable[str]) -> None:
  """Raises InputError for what a program wrote in files that are no tables.

  It is a feature cache, or a folder of TFDS or of `datasets`, as its metadata
  say.

  Args:
    folder: the folder.
    names: of all files in it, at any depth.
  """
  metadata: dict[str, str] = {}
  for name in names:
    place, base = os.path.split(name)
    metadata.setdefault(base, os.path.join(folder, place).rstrip("/"))
  if "cache_info.json" in metadata:
    raise InputError(
      f"{metadata['cache_info.json']!r} is a feature cache, and no source of"
      " one: give it to `oneshot-dp train --cache`."
    )
  if "dataset_info.json" in metadata and "features.json" in metadata:
    place = metadata["dataset_info.json"]
    raise InputError(
      f"{place!r} is a data set that TFDS has prepared: extract tfds:{place}."
    )
  if "dataset_info.json" in metadata and "state.json" in metadata:
    place = metadata["state.json"]
    table = f"{os.path.basename(place)}.parquet"
    raise InputError(
      f"{place!r} is Arrow, which save_to_disk of `datasets` wrote: write it as"
      f" Parquet by load_from_disk({place!r}).to_parquet({table!r})."
    )
