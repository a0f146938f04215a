"""Reads the vectors of `--start`: one public vector for each class."""

import contextlib
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PublicStart
from oneshot_dp.extract import places
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.sources.listed_files import readable_as
from oneshot_dp.pipeline.vector_files import (
  NPZ,
  NpzVectors,
  VectorFile,
  read_column,
)


def read_start(path: Path, info: CacheInfo) -> PublicStart:
  """Reads the public start that `--start` names.

  Args:
    path: of an npz with a vector [d] for each class, under the name of the
      class: embeddings of the names by a text tower, say. It must be no
      function of private rows.
    info: of the cache whose head it is for.

  Raises:
    InputError: the file does not exist, is of other classes, or has vectors of
      another width.
  """
  # The digest goes into the receipt: it says which public vectors were assumed
  # to be no function of the private rows.
  content = places.read(path)
  names = info.class_names
  vectors = _start_of(path, content)
  # By name and not by order: vectors in another order of classes would make a
  # head that is wrong and raises no error.
  wrong_names = sorted(set(names) ^ vectors.shapes.keys())
  if wrong_names:
    raise InputError(
      f"{path} must hold one vector for each class of the cache, under its"
      f" name, and no more: see {wrong_names[0]!a}, and"
      f" {len(wrong_names) - 1} others."
    )
  for name in names:
    if vectors.shapes[name] != (info.feature_dim,):
      raise InputError(
        f"{path}: {name!r} has shape {vectors.shapes[name]}, and embeddings are"
        f" ({info.feature_dim},): use the same model's."
      )
  return PublicStart.of(
    np.stack([read_column(vectors, name) for name in names]),
    num_classes=len(names),
    feature_dim=info.feature_dim,
    names=names,
    sha256=hashlib.sha256(content).hexdigest(),
  )


def _start_of(path: Path, content: bytes) -> VectorFile:
  """Opens an npz that was read into memory; its digest is of these bytes."""

  @contextlib.contextmanager
  def open_content() -> Iterator[BinaryIO]:
    with readable_as(str(path), NPZ):
      yield io.BytesIO(content)

  return NpzVectors(str(path), open_content)
