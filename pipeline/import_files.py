"""Finds the files of an import, by the rules of `extract`, and their split."""

import os
from collections.abc import Sequence
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.annotations.split_columns import (
  check_folder_splits,
  refuse_differing_splits,
  split_of_columns,
)
from oneshot_dp.extract.sources.annotations.splits import (
  resolve_split,
  split_of_path,
  split_tables,
)
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.location import (
  common_folder,
  expand_location,
  list_tables,
)
from oneshot_dp.pipeline.import_columns import ImportRequest, candidates
from oneshot_dp.pipeline.vector_files import (
  SUFFIXES,
  VectorFile,
  open_vector_file,
)

_UNNAMED_SPLIT = "all"
"""The split that `split_tables` gives to files whose names tell of none."""
_DEFAULT_SPLIT = "train"


def list_files(request: ImportRequest) -> tuple[str, str, list[VectorFile]]:
  """Finds the files of the split that is imported.

  Args:
    request: where the files are, and perhaps which split is wanted.

  Returns:
    The names of the data set and of the split, and the split's files.

  Raises:
    InputError: there are none, or one of several splits has to be chosen.
  """
  paths = expand_location([request.location])
  name, files = list_tables(paths, SUFFIXES)
  if len(paths) == 1:
    name = Path(name).stem if name.lower().endswith(SUFFIXES) else name
  # Engines write aside what begins with _: _temporary, _SUCCESS.
  listed = {
    path: file
    for path, file in files.items()
    if "/_" not in f"/{path}" or path in paths
  }
  if not any(path.lower().endswith(SUFFIXES) for path in listed):
    raise InputError(
      f"{request.location!r} has no {' or '.join(SUFFIXES)} of embeddings: of"
      " images, `oneshot-dp extract` makes a cache."
    )
  # The split follows from names of files; a single npz may instead have arrays
  # of several splits, which their names tell apart.
  by_split = split_tables(listed, SUFFIXES)
  if len(listed) == 1:
    ((path, file),) = listed.items()
    if path.lower().endswith(".npz"):
      by_split = _splits_of_arrays(request, path, file)
  # Where no name tells of a split, the flag says what it is to be called.
  if set(by_split) == {_UNNAMED_SPLIT}:
    members = by_split[_UNNAMED_SPLIT]
    split = _split_of_unnamed(request, members)
  else:
    split, members = resolve_split(request.location, request.split, by_split)
  root = common_folder(files)
  used = (*candidates(request.label, "label"), request.unit_name)
  check_folder_splits(request.location, split, members, root, used)
  return name, split, [open_vector_file(listed[path], root) for path in members]


def _split_of_unnamed(request: ImportRequest, members: Sequence[str]) -> str:
  """The split of files that are of whatever split a flag says.

  InputError: an npz is named after another one.
  """
  file_name = ""
  if len(members) == 1:
    file_name = os.path.basename(members[0])
  refuse_differing_splits(request.location, request.split, [file_name])
  columns = split_of_columns((request.embedding, request.label))
  named = columns or split_of_path(file_name)
  return request.split or named or _DEFAULT_SPLIT


def _splits_of_arrays(
  request: ImportRequest, path: str, file: File
) -> dict[str, list[str]]:
  """The splits that the arrays of an npz are named after, as in train_label.

  An npz whose arrays have plain names is of whatever split is asked for.
  """
  names = open_vector_file(file).shapes
  suffixes = [f"_{name}" for name in candidates(request.embedding, "embedding")]
  splits = [
    name.removesuffix(suffix)
    for name in names
    for suffix in suffixes
    if name.endswith(suffix) and name != suffix
  ]
  is_plain = any(suffix.removeprefix("_") in names for suffix in suffixes)
  if is_plain or not splits:
    return {_UNNAMED_SPLIT: [path]}
  return {split: [path] for split in splits}
