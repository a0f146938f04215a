"""A public start from a file: its vectors by the names of the classes."""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PublicStart
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import read_regular
from oneshot_dp.pipeline.head_folder import read_head
from oneshot_dp.pipeline.ledger import Ledger

_MOST_BYTES = 1 << 32


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
  if path.is_dir():
    vectors, digest = _of_head(path, info, ledger)
  else:
    vectors, digest = _of_npz(path)
  names, d = info.class_names, info.feature_dim
  wanted = f"the {len(names)} classes of the cache"
  if missing := [name for name in names if name not in vectors]:
    raise InputError(
      f"{path} has no vector for {_some(missing)}: give one for each of"
      f" {wanted}, by its name."
    )
  if extra := sorted(vectors.keys() - {*names}):
    raise InputError(f"{path} has {_some(extra)}, none of {wanted}.")
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


def _some(names: list[str]) -> str:
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(map(repr, names[:3])) + more


def _of_npz(path: Path) -> tuple[dict[str, np.ndarray], str]:
  content = read_regular(path, _MOST_BYTES)
  try:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
      vectors = {name: file[name] for name in file.files}
  except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as e:
    raise InputError(
      f"{path} is no npz that can be read ({type(e).__name__}): save a vector"
      " for each class with numpy.savez."
    ) from e
  except (AttributeError, TypeError, NotImplementedError) as e:  # one array
    raise InputError(f"{path} is no npz of a vector for each class.") from e
  return vectors, hashlib.sha256(content).hexdigest()


def _of_head(
  path: Path, info: CacheInfo, ledger: Ledger
) -> tuple[dict[str, np.ndarray], str]:
  """Released already, so that it costs what was paid for it, elsewhere."""
  saved = read_head(path)
  stated = saved.receipt["stated"]
  if stated["backbone_fingerprint"] != info.backbone_fingerprint:
    raise InputError(f"{path} is a head of another backbone than the cache.")
  of = [each.dataset for each in ledger.paid(stated["charge"] or "")]
  own = info.dataset.casefold()
  if own in {name.casefold() for name in (stated["dataset"], *of)}:
    raise InputError(
      f"{path} is a head of the private data set {info.dataset!r}: what it cost"
      " would not be in the new head's receipt; go on from it with --from."
    )
  if not saved.private:
    raise InputError(
      f"{path} is NOT PRIVATE: save its vectors as an npz, if its data are"
      " public."
    )
  if stated["options"].get("start_sha256"):
    raise InputError(
      f"{path} started from other weights itself, perhaps of {info.dataset!r}:"
      " give the public file that it started from."
    )
  columns = np.asarray(saved.head.kernel).T
  vectors = dict(zip(stated["class_names"], columns, strict=True))
  return vectors, stated["weights_sha256"]
