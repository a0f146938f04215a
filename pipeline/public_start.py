"""A public start from a file: its vectors by the names of the classes."""

import hashlib
import io
from pathlib import Path

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PublicStart
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import read_regular
from oneshot_dp.pipeline.head_folder import read_head
from oneshot_dp.pipeline.ledger import Ledger


def read_start(path: Path, info: CacheInfo, ledger: Ledger) -> PublicStart:
  """The start that `--start` names, for a head of a cache of this `info`.

  Args:
    path: an npz of one vector for each class, by its name (a text tower's
      embeddings of the names), or the folder of a private head of another data
      set, which was paid for there.
    info: of the private cache.
    ledger: that knows which heads are of the private data.

  Raises:
    InputError: no such file or head; other classes, or vectors of another
      width; a head of the private data itself, whose cost would not be in the
      receipt.
  """
  vectors = {}
  if path.is_dir():
    vectors, digest = _of_head(path, info, ledger)
  else:
    content = read_regular(path)
    digest = hashlib.sha256(content).hexdigest()
    try:
      with np.load(io.BytesIO(content), allow_pickle=False) as file:
        vectors = {name: file[name] for name in file.files}
    except Exception as e:  # whatever a damaged file makes of NumPy and zipfile
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
    sha256=digest,
  )


def _of_head(
  path: Path, info: CacheInfo, ledger: Ledger
) -> tuple[dict[str, np.ndarray], str]:
  """Released already, so that it costs what was paid for it, elsewhere."""
  saved = read_head(path)
  stated = saved.stated
  of = [stated["dataset"], *(e.dataset for e in ledger.paid(stated["charge"]))]
  if info.dataset.casefold() in map(str.casefold, of):
    raise InputError(
      f"{path} is a head of the private data set {info.dataset!r}: what it cost"
      " would not be in the new head's receipt; go on from it with --from."
    )
  if not saved.private or stated["options"].get("start_sha256"):
    raise InputError(
      f"{path} is NOT PRIVATE, or started from other weights itself, perhaps of"
      f" {info.dataset!r}: give a public file."
    )
  if stated["backbone_fingerprint"] != info.backbone_fingerprint:
    raise InputError(f"{path} is a head of another backbone than the cache.")
  columns = np.asarray(saved.head.kernel).T
  vectors = dict(zip(stated["class_names"], columns, strict=True))
  return vectors, stated["weights_sha256"]
