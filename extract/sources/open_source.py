"""Opens a source: the location says of what kind it is.

A new kind of files with rows is a file beside this one, a line in `_rows`, and
an extension in `listed_files`.
"""

import base64
import dataclasses
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  SourceConfig,
  check_unit_name,
)
from oneshot_dp.extract.sources import archives, listed_files
from oneshot_dp.extract.sources.folder import is_split, open_folder
from oneshot_dp.extract.sources.labels import (
  FileRows,
  chosen,
  class_names,
  label_numbers,
  units_of_column,
)
from oneshot_dp.extract.sources.listed_files import (
  IMAGES,
  ROWS,
  File,
  format_names,
  is_image,
  is_table,
)
from oneshot_dp.extract.sources.source import Source

_WHAT = (
  "give a folder of a folder of images for each class, or files that end in"
  f" {', '.join(ROWS)}"
)


def open_source(settings: SourceConfig) -> Source:
  """Opens one split of a data set.

  It is listed, and labels and units are read, so this is done once, where a job
  is started. What TFDS has not on disk yet is downloaded and prepared.
  InputError: there is no such data set or split, or it is not what it should
  be. RunError: a TFDS data set cannot be downloaded or prepared.
  """
  if (words := settings.location)[0].startswith("tfds:") and len(words) == 1:
    from oneshot_dp.extract.sources.tfds import open_tfds

    return open_tfds(settings)
  if settings.data_dir is not None:
    raise InputError("--data-dir is for tfds:NAME: leave it out.")
  paths = listed_files.expanded(words)
  above, name = os.path.split(os.path.abspath(root := paths[0]))
  if len(paths) == 1 and (files := listed_files.files_in(root)):
    others = [file.path for file in files if not is_image(file.path)]
    if len(others) < len(files):
      if settings.image or settings.label:
        raise InputError("--image and --label are for tables, not for folders.")
      source = open_folder(settings, root, files)
      kinds = sorted({os.path.splitext(path)[1].lower() for path in others})
      if others:  # said, as photographs may be among them: .heic, .tif
        told = escaped(f"{root}: {len(others):,} files, {', '.join(kinds)}", "")
        print(f"passed over in {told[:300]}", file=sys.stderr)
      return source
    listed_files.refuse_broken(root, files)
    places = {file.path: listed_files.below(root, file) for file in files}
  else:
    name = name if len(paths) == 1 else os.path.basename(above)
    if len(set(paths)) < len(paths) or not all(map(is_table, paths)):
      raise InputError(f"{format_names(paths)}: {_WHAT}, each once.")
    places = {path: listed_files.file_at(path) for path in paths}
  found = splits_of(places)
  if [path.lower()[-4:] for path in places] == [".npz"]:
    named = archives.array_splits(*places.values()) or [settings.split or "all"]
    found = {key: list(places) for key in named}
  split = chosen(root, "--split", settings.split, sorted(found))
  homes = {
    os.path.join(os.path.dirname(f), f"*{os.path.splitext(f)[1]}")
    for f in found[split]
  }
  if len(homes) > 1:
    raise InputError(
      f"{root!r} has its split {split!r} in several places, which may hold the"
      f" same images: give one of {format_names(sorted(homes))}."
    )
  if settings.units is not None:
    check_unit_name(settings.units)
  name = settings.name or os.path.splitext(name)[0]
  settings = dataclasses.replace(settings, name=name, split=split)
  return _source_of(settings, [places[f] for f in found[split]], labelled=True)


def splits_of(files: Iterable[str]) -> dict[str, list[str]]:
  """Files of rows of each split, by the names of files and folders.

  A split is the NAME of NAME-00000-of-00002, or a word such as train or test in
  the name of the file or of its folders. Without any, all are the split `all`;
  beside others, files without one are those of "". InputError: there is none.
  """
  found: dict[str, list[str]] = {}
  files = list(files)
  for file in filter(is_table, files):
    stem = os.path.splitext(file)[0]
    sharded = re.search(r"([^\W_][\w.]*)-\d+-of-\d+[^/]*$", stem)
    words = re.split(r"[/._ -]", stem)
    split = next(filter(is_split, reversed(words)), "")
    if sharded and sharded[1] != "data":
      split = sharded[1]
    found.setdefault(split, []).append(file)
  packed = [f for f in files if re.search(r"\.(tar\.\w+|tgz)$", f.lower())]
  if packed or not found:
    raise InputError(
      f"{format_names(packed or files) or 'nothing'}: {_WHAT} (not"
      " compressed, as"
      " members are read by their place)."
    )
  return {"all": found[""]} if set(found) == {""} else found


def unlabelled(paths: Sequence[str]) -> Source:
  """The images of files, folders at any depth, npz, Parquet files and tars.

  They come in the order of the paths, those of a folder in that of their names
  by code point, those of a file in that of its rows. InputError: a path is none
  of these, or has no image.
  """
  files: list[File] = []
  for path in listed_files.expanded(paths):
    found = listed_files.files_in(path)
    if not (found or os.path.isdir(path)):
      files.append(listed_files.file_at(path))
      continue
    listed_files.refuse_broken(path, found)
    images = [f for f in found if is_image(f.path)]
    some = images or [f for f in found if is_table(f.path)]
    if not some:
      raise InputError(
        f"{path!r} has no images: they end in {', '.join(IMAGES)}, or are in"
        f" {', '.join(ROWS)} files."
      )
    files += [listed_files.below(path, file) for file in some]
  return images_of(files)


def images_of(files: Sequence[File], image: str | None = None) -> Source:
  """Those of files that were listed; `image` is the array that has them."""
  settings = SourceConfig(location=(".",), image=image)
  return _source_of(settings, files, labelled=False)


def _rows(settings: SourceConfig, file: File, labelled: bool) -> FileRows:
  kind = os.path.splitext(file.path)[1].lower()
  if kind == ".tar":
    return archives.tar_rows(settings, file, labelled)
  if kind == ".npz":
    return archives.npz_rows(settings, file, labelled)
  if kind == ".parquet":
    from oneshot_dp.extract.sources.parquet import parquet_rows

    return parquet_rows(settings, file, labelled)
  return FileRows("", np.array([(0, file.size)], np.int64))


def _source_of(
  settings: SourceConfig, files: Sequence[File], labelled: bool
) -> Source:
  """Files of rows, one after another; without labels, all are of class 0.

  InputError: a row has no label or owner, or files are of different classes.
  """
  names, known, unit = ("unlabelled",), {}, settings.units
  columns, labels, owners, at = [], [], [], [np.zeros((0, 2), np.int64)]
  for file in files:
    rows, before = _rows(settings, file, labelled), names
    where = functools.partial("{}[{}]".format, file.path)
    if labelled:
      names = class_names(rows.named, settings, file.path)
      found = label_numbers(rows.labels, names, rows.key, where)
      labels.append(np.array(found, np.int64))
    if columns and names != before:
      raise InputError(f"{file.path!r} has other classes than others.")
    if unit:
      found = units_of_column([*rows.units], unit, where, known)
      owners.append(np.array(found, np.int64))
    for found in (*labels[-1:], *owners[-1:]):
      if len(found) != len(rows.at):
        said = f"{len(found)} of {len(rows.at)} rows"
        raise InputError(f"{file.path!r} is damaged: {said}.")
    columns.append(rows.column)
    at.append(rows.at)
  sizes = np.array([len(each) for each in at[1:]], np.int64)
  numbers = np.repeat(np.arange(len(files)), sizes)
  return Source(
    name=settings.name or "unlabelled",
    split=settings.split or "all",
    class_names=names,
    unit=unit or EXAMPLE,
    labels=np.concatenate(labels or [0 * numbers]).astype(np.int32),
    unit_ids=np.concatenate(owners) if unit else None,
    files=tuple(files),
    columns=tuple(columns),
    at=np.column_stack([numbers, np.concatenate(at)]),
  )


def serialize_source(source: Source) -> bytes:
  """What a source consists of, as JSON: equal bytes, equal sources. Private."""

  def plain(array: np.ndarray) -> tuple[str, tuple[int, ...], str]:
    data = base64.b64encode(array.tobytes()).decode()
    return array.dtype.str, array.shape, data

  fields = {f.name: getattr(source, f.name) for f in dataclasses.fields(source)}
  named = {"kind": type(source).__name__, **fields}
  return json.dumps(named, default=plain).encode()


def deserialize_source(listing: bytes) -> Source:
  """The source of a listing, in any process that sees the same files."""

  def array(_: Any, plain: list[Any]) -> np.ndarray:
    dtype, shape, data = plain
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)

  # (Python's JSON, as names of files need not be UTF-8.)
  fields, kind = json.loads(listing), Source
  if fields.pop("kind") != Source.__name__:
    from oneshot_dp.extract.sources.tfds import Tfds as kind
  return msgspec.convert(fields, kind, dec_hook=array)
