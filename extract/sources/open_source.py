"""Opens a source: the location says of what kind it is.

A new kind of source is a file beside this one, a line in `open_source`, and a
row of `_KINDS`.
"""

import base64
import dataclasses
import importlib
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceSettings, check_unit_name
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import shortened
from oneshot_dp.extract.sources.folder import (
  is_split,
  open_folder,
  refuse_broken,
  tell_passed_over,
)
from oneshot_dp.extract.sources.listed_files import IMAGES, TABLES, Found
from oneshot_dp.extract.sources.source import Listed, Source

# A module is imported where it is asked for: TFDS takes most of a second.
_KINDS = {
  "Folder": "folder",
  "Npz": "npz",
  "Parquet": "parquet",
  "Tars": "tars",
  "Tfds": "tfds",
}


def open_source(settings: SourceSettings) -> Source:
  """Opens one split of a data set.

  It is listed, and labels and units are read (of a npz the images, too), so
  this is done once, where a job is started. A TFDS data set that is not on disk
  yet is downloaded and prepared.

  >>> import tempfile
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   np.savez(
  ...     f"{folder}/pets.npz",
  ...     image=np.zeros((2, 8, 8, 3), np.uint8),
  ...     label=np.array([1, 0]),
  ...     class_names=np.array(["cat", "dog"]),
  ...   )
  ...   source = open_source(SourceSettings(location=(f"{folder}/pets.npz",)))
  >>> len(source), source.name, source.class_names, source[0].label
  (2, 'pets', ('cat', 'dog'), 1)

  Raises:
    InputError: there is no such data set or split, or it is not what it should
      be.
    RunError: a TFDS data set cannot be downloaded or prepared.
  """
  if any(word.startswith("tfds:") for word in settings.location):
    if len(settings.location) > 1:
      raise InputError("tfds:NAME is one data set: give nothing beside it.")
    from oneshot_dp.extract.sources.tfds import open_tfds

    return open_tfds(settings)
  if settings.data_dir is not None:
    raise InputError("--data-dir is for tfds:NAME: leave it out.")
  paths = listed_files.expanded(settings.location)
  if len(paths) == 1 and listed_files.is_folder(paths[0]):
    found = listed_files.found_in(paths[0])
    if any(listed_files.is_image(file.path) for file in found.files):
      if settings.image or settings.label:
        raise InputError(
          "--image and --label are for tables: classes are folders here."
        )
      source = open_folder(settings, paths[0], found)
      tell_passed_over(paths[0], found)
      return source
    return _open_tables(settings, *_tables_in(settings, paths[0], found))
  if paths[0].lower().endswith(".npz"):
    if len(paths) > 1:
      raise InputError(f"{shortened(paths)}: give one npz file.")
    from oneshot_dp.extract.sources.npz import open_npz

    return open_npz(settings, paths[0])
  return _open_tables(settings, *_tables_at(settings, paths))


def listing_of(source: Source) -> bytes:
  """What a source consists of, as JSON: equal bytes, equal sources. Private."""
  fields = {
    field.name: _encoded(getattr(source, field.name))
    for field in dataclasses.fields(source)
  }
  return json.dumps([type(source).__name__, fields]).encode()


def reopened(listing: bytes) -> Source:
  """The source of a listing, in any process that sees the same files."""
  kind, fields = json.loads(listing)
  home = importlib.import_module(f"oneshot_dp.extract.sources.{_KINDS[kind]}")
  return getattr(home, kind)(
    **{name: _decoded(value) for name, value in fields.items()}
  )


def _encoded(value: Any) -> Any:
  if not isinstance(value, np.ndarray):
    return value
  little = value.astype(value.dtype.newbyteorder("<"))
  return {str(value.dtype): base64.b64encode(little.tobytes()).decode()}


def _decoded(value: Any) -> Any:
  if isinstance(value, list):
    return tuple(value)
  if not isinstance(value, dict):
    return value
  ((dtype, text),) = value.items()
  little = np.dtype(dtype).newbyteorder("<")
  return np.frombuffer(base64.b64decode(text), little).astype(dtype)


def tables_of(files: Sequence[str]) -> dict[str, list[str]]:
  """Parquet files or tars of each split, by the names of files and folders.

  A split is the NAME of NAME-00000-of-00002, or a word such as train or test in
  the name of the file or of its folders. Without any, all are the split `all`;
  beside others, files without one are those of "".
  """
  found: dict[str, list[str]] = {}
  for file in files:
    if file.lower().endswith(TABLES):
      found.setdefault(_split_of(file), []).append(file)
  return {"all": found[""]} if set(found) == {""} else found


def _split_of(file: str) -> str:
  stem = os.path.splitext(file)[0]
  sharded = re.search(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$", stem)
  if sharded and sharded[1] != "data":
    return sharded[1]
  words = re.split(r"[/._ -]", stem)
  return next(filter(is_split, reversed(words)), "")


def _tables_in(
  settings: SourceSettings, root: str, found: Found
) -> tuple[str, str, list[str]]:
  """Name, split and files of a folder of tables."""
  refuse_broken(root, found)
  files = [file.path for file in found.files]
  refuse_packed(files)
  if not (splits := tables_of(files)):
    raise InputError(
      f"{root!r} has no images ({', '.join(IMAGES)}), nor files that end in"
      f" {', '.join(TABLES)}."
    )
  split, some = _chosen_split(settings.split, splits, root)
  name = os.path.basename(os.path.abspath(root)).removesuffix(".parquet")
  return name, split, [os.path.join(root, file) for file in some]


def _tables_at(
  settings: SourceSettings, paths: Sequence[str]
) -> tuple[str, str, list[str]]:
  """Name, split and files of tables that were named one by one."""
  refuse_packed(paths)
  others = [path for path in paths if not path.lower().endswith(TABLES)]
  if others:
    raise InputError(
      f"{shortened(others)}: images and their labels are a folder of a folder"
      f" for each class, FILE.npz, or files that end in {', '.join(TABLES)}."
    )
  names = [os.path.basename(path) for path in paths]
  split, some = _chosen_split(settings.split, tables_of(names), paths[0])
  stem = os.path.splitext(names[0])[0]
  if len(paths) > 1:
    stem = os.path.basename(os.path.dirname(os.path.abspath(paths[0])))
  kept = [path for path, name in zip(paths, names, strict=True) if name in some]
  if len(set(kept)) < len(kept):
    raise InputError(f"{shortened(kept)}: a file is there twice.")
  return stem, split, kept


def refuse_packed(files: Sequence[str]) -> None:
  """InputError: compressed tars, which cannot be read by index."""
  if packed := [f for f in files if re.search(r"\.(tar\.\w+|tgz)$", f.lower())]:
    raise InputError(
      f"compressed tars cannot be read by index: unpack {shortened(packed)}."
    )


def _chosen_split(
  split: str | None, splits: dict[str, list[str]], place: str
) -> tuple[str, list[str]]:
  named = sorted(filter(None, splits))
  if split is None and len(splits) == 1 and named:
    split = named[0]
  if not split or split not in splits:
    raise InputError(
      f"{place!r} has no split {split!r} by the names of its files: give"
      f" --split {' or '.join(named)}."
      if split
      else f"{place!r} has several splits: give --split {' or '.join(named)}."
    )
  files = splits[split]
  homes = {
    os.path.join(os.path.dirname(file), f"*{os.path.splitext(file)[1]}")
    for file in files
  }
  if len(homes) > 1:
    raise InputError(
      f"{place!r} has its split {split!r} in several places"
      f" ({shortened(sorted(homes))}), which may hold the same images: give one"
      " of them."
    )
  return split, files


def _open_tables(
  settings: SourceSettings, name: str, split: str, files: Sequence[str]
) -> Source:
  if settings.units is not None:
    check_unit_name(settings.units)
  return opener_of(files[0])(settings, settings.name or name, split, files)


def opener_of(file: str) -> Callable[..., Listed]:
  """What opens files of this kind: `open_parquet` or `open_tars`."""
  if file.lower().endswith(".tar"):
    from oneshot_dp.extract.sources.tars import open_tars

    return open_tars
  from oneshot_dp.extract.sources.parquet import open_parquet

  return open_parquet
