"""Opens a source: the location says of what kind it is.

A new kind of source is a file beside this one, a line in `open_source`, and a
name in `_HOMES`.
"""

import base64
import dataclasses
import importlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
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
from oneshot_dp.extract.sources.listed_files import IMAGES, TABLES, shortened
from oneshot_dp.extract.sources.source import Source

_HOMES = ("folder", "npz", "parquet", "tars", "tfds")
"""Modules, each with a class of its name; each needs its own libraries."""


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
  words = settings.location
  if any(word.startswith("tfds:") for word in words):
    if len(words) > 1:
      raise InputError("tfds:NAME is one data set: give nothing beside it.")
    from oneshot_dp.extract.sources.tfds import open_tfds

    return open_tfds(settings)
  if settings.data_dir is not None:
    raise InputError("--data-dir is for tfds:NAME: leave it out.")
  paths = listed_files.expanded(words)
  root = paths[0]
  if len(paths) == 1 and listed_files.is_folder(root):
    files = listed_files.files_in(root)
    if any(listed_files.is_image(file.path) for file in files):
      if settings.image or settings.label:
        raise InputError("--image and --label are for tables, not for folders.")
      source = open_folder(settings, root, files)
      tell_passed_over(root, files)
      return source
    listed_files.refuse_broken(root, files)
    tables = {file.path: os.path.join(root, file.path) for file in files}
    return _open_tables(settings, root, tables)
  if len(paths) == 1 and root.lower().endswith(".npz"):
    from oneshot_dp.extract.sources.npz import open_npz

    return open_npz(settings, root)
  tables = {os.path.basename(path): path for path in paths}
  if len(tables) < len(paths) or not all(map(_is_table, tables)):
    raise InputError(
      f"{shortened(paths)}: give a folder of a folder of images for each class,"
      f" one npz, or files that end in {', '.join(TABLES)}, each once."
    )
  return _open_tables(settings, root, tables)


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
  assert kind.lower() in _HOMES, kind
  home = importlib.import_module(f"oneshot_dp.extract.sources.{kind.lower()}")
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


def tables_of(files: Iterable[str]) -> dict[str, list[str]]:
  """Parquet files or tars of each split, by the names of files and folders.

  A split is the NAME of NAME-00000-of-00002, or a word such as train or test in
  the name of the file or of its folders. Without any, all are the split `all`;
  beside others, files without one are those of "".
  """
  found: dict[str, list[str]] = {}
  for file in filter(_is_table, files):
    stem = os.path.splitext(file)[0]
    sharded = re.search(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$", stem)
    words = re.split(r"[/._ -]", stem)
    split = next(filter(is_split, reversed(words)), "")
    if sharded and sharded[1] != "data":
      split = sharded[1]
    found.setdefault(split, []).append(file)
  return {"all": found[""]} if set(found) == {""} else found


def _is_table(path: str) -> bool:
  return path.lower().endswith(TABLES)


def _open_tables(
  settings: SourceSettings, root: str, files: Mapping[str, str]
) -> Source:
  """Parquet files or tars: paths by the names that say their split."""
  if packed := [f for f in files if re.search(r"\.(tar\.\w+|tgz)$", f.lower())]:
    raise InputError(
      f"compressed tars cannot be read by index: unpack {shortened(packed)}."
    )
  if not (splits := tables_of(files)):
    raise InputError(
      f"{root!r} has no images ({', '.join(IMAGES)}), nor files that end in"
      f" {', '.join(TABLES)}."
    )
  named, split = sorted(filter(None, splits)), settings.split
  split = named[0] if split is None and len(splits) == 1 else split
  if not split or split not in splits:
    problem = "several splits" if split is None else "no such split"
    raise InputError(
      f"{root!r} has {problem}, by the names of its files: give --split"
      f" {' or '.join(named)}."
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
  return open_table(settings, paths, name=name, split=split)


def open_table(
  settings: SourceSettings,
  paths: Sequence[str],
  labelled: bool = True,
  **names: str,
) -> Source:
  """Parquet files or tars; see `open_parquet` and `open_tars`."""
  if paths[0].lower().endswith(".tar"):
    from oneshot_dp.extract.sources.tars import open_tars

    return open_tars(settings, paths, labelled, **names)
  from oneshot_dp.extract.sources.parquet import open_parquet

  return open_parquet(settings, paths, labelled, **names)
