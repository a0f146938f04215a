"""A public start from a file: its vectors by the names of the classes."""

import hashlib
import io
from pathlib import Path

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PublicStart
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import read_regular


def read_start(path: Path, info: CacheInfo) -> PublicStart:
  """The start that `--start` names, for a head of a cache of this `info`.

  Args:
    path: an npz of one vector [d] for each class, by its name: embeddings of
      the names by a text tower, say. No function of the private rows.
    info: of the private cache.

  Raises:
    InputError: no such file; other classes, or vectors of another width.
  """
  content = read_regular(path)
  try:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
      vectors = {name: file[name] for name in file.files}
  except Exception as e:  # whatever NumPy and zipfile make of a damaged file
    raise InputError(
      f"{path} is no npz that can be read ({type(e).__name__}): save a vector"
      " for each class with numpy.savez."
    ) from e
  names, d = info.class_names, info.feature_dim
  if wrong := sorted({*names} ^ vectors.keys()):
    raise InputError(
      f"{path} has not just a vector for each class of the cache, by its name:"
      f" see {wrong[0]!a}, and {len(wrong) - 1} more."
    )
  for name in names:
    if vectors[name].shape != (d,):
      raise InputError(
        f"{path}: {name!r} has shape {vectors[name].shape}, and embeddings are"
        f" ({d},): use the same model's."
      )
  return PublicStart.of(
    np.stack([vectors[name] for name in names]),
    num_classes=len(names),
    feature_dim=d,
    names=names,
    sha256=hashlib.sha256(content).hexdigest(),
  )
