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
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceSettings, check_unit_name
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.folder import (
  is_split,
  open_folder,
  tell_passed_over,
)
from oneshot_dp.extract.sources.listed_files import TABLES, shortened
from oneshot_dp.extract.sources.source import Listed, Source

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
  root = paths[0]
  if len(paths) > 1 or not listed_files.is_folder(root):
    if root.lower().endswith(".npz") and len(paths) == 1:
      from oneshot_dp.extract.sources.npz import open_npz

      return open_npz(settings, root)
    names = {os.path.basename(path): path for path in paths}
    if len(names) < len(paths) or not all(map(_is_table, names)):
      raise InputError(
        f"{shortened(paths)}: give a folder of a folder of images for each"
        f" class, one npz, or files that end in {', '.join(TABLES)}, each once."
      )
    return _open_tables(settings, root, names)
  files = listed_files.files_in(root)
  if any(listed_files.is_image(file.path) for file in files):
    if settings.image or settings.label:
      raise InputError("--image and --label are for tables, not for folders.")
    source = open_folder(settings, root, files)
    tell_passed_over(root, files)
    return source
  listed_files.refuse_broken(root, files)
  return _open_tables(
    settings, root, {f.path: os.path.join(root, f.path) for f in files}
  )


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
  given = {name: _decoded(value) for name, value in fields.items()}
  return getattr(home, kind)(**given)


def _encoded(value: Any) -> Any:
  if not isinstance(value, np.ndarray):
    return value
  little = value.astype(value.dtype.newbyteorder("<"))
  return {value.dtype.name: base64.b64encode(little.tobytes()).decode()}


def _decoded(value: Any) -> Any:
  if isinstance(value, dict):
    ((dtype, text),) = value.items()
    little = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(base64.b64decode(text), little).astype(dtype)
  return tuple(value) if isinstance(value, list) else value


def tables_of(files: Sequence[str]) -> dict[str, list[str]]:
  """Parquet files or tars of each split, by the names of files and folders.

  A split is the NAME of NAME-00000-of-00002, or a word such as train or test in
  the name of the file or of its folders. Without any, all are the split `all`;
  beside others, files without one are those of "".
  """
  found: dict[str, list[str]] = {}
  for file in filter(_is_table, files):
    found.setdefault(_split_of(file), []).append(file)
  return {"all": found[""]} if set(found) == {""} else found


def _is_table(path: str) -> bool:
  return path.lower().endswith(TABLES)


def _split_of(file: str) -> str:
  stem = os.path.splitext(file)[0]
  sharded = re.search(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$", stem)
  if sharded and sharded[1] != "data":
    return sharded[1]
  words = re.split(r"[/._ -]", stem)
  return next(filter(is_split, reversed(words)), "")


def _open_tables(
  settings: SourceSettings, root: str, files: dict[str, str]
) -> Source:
  """Parquet files or tars: their paths by the names that say the split."""
  if packed := [f for f in files if re.search(r"\.(tar\.\w+|tgz)$", f.lower())]:
    raise InputError(
      f"compressed tars cannot be read by index: unpack {shortened(packed)}."
    )
  if not (splits := tables_of(list(files))):
    raise InputError(
      f"{root!r} has no images ({', '.join(listed_files.IMAGES)}), nor files"
      f" that end in {', '.join(TABLES)}."
    )
  named, split = sorted(filter(None, splits)), settings.split
  split = named[0] if split is None and len(splits) == 1 else split
  if not split or split not in splits:
    raise InputError(
      f"{root!r} has {'several splits' if split is None else 'no such split'},"
      f" by the names of its files: give --split {' or '.join(named)}."
    )
  homes = {
    os.path.join(os.path.dirname(file), f"*{os.path.splitext(file)[1]}")
    for file in splits[split]
  }
  if len(homes) > 1:
    raise InputError(
      f"{root!r} has its split {split!r} in several places"
      f" ({shortened(sorted(homes))}), which may hold the same images: give one"
      " of them."
    )
  if settings.units is not None:
    check_unit_name(settings.units)
  above, name = os.path.split(os.path.abspath(root))
  if len(files) > 1 and files.get(name) == root:  # of several that were named
    name = os.path.basename(above)
  name = settings.name or os.path.splitext(name)[0]
  paths = [files[file] for file in splits[split]]
  return open_table(settings, name, split, paths)


def open_table(
  settings: SourceSettings,
  name: str,
  split: str,
  paths: Sequence[str],
  labelled: bool = True,
) -> Listed:
  """Parquet files or tars; see `open_parquet` and `open_tars`."""
  # A module is imported where it is asked for: each needs its own libraries.
  if paths[0].lower().endswith(".tar"):
    from oneshot_dp.extract.sources.tars import open_tars

    return open_tars(settings, name, split, paths, labelled)
  from oneshot_dp.extract.sources.parquet import open_parquet

  return open_parquet(settings, name, split, paths, labelled)
