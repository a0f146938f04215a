"""A head on disk: weights, what it was made of, receipt and model card.

HEAD/head.safetensors       kernel [d, K], bias [K], float32
HEAD/releases.safetensors   the noisy sums, public, for `train --from`
HEAD/receipt.json           what is stated, and what follows
HEAD/README.md              the same for people

A head that is NOT PRIVATE gives the private sums away: the folder has mode
0700 and its files 0600. Others have what the umask says.
"""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import disk_errors, read_regular
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.linear_dp.private_sums import Release
from oneshot_dp.linear_dp.train import TrainedHead
from oneshot_dp.pipeline.heads.receipt import (
  UNIT_NORM,
  card,
  check_receipt,
  make_receipt,
)
from oneshot_dp.pipeline.ledger.delivery import RECEIPT_FILE, WEIGHTS_FILE
from oneshot_dp.pipeline.ledger.entries import sha256
from oneshot_dp.pipeline.ledger.staged_output import StagedOutput

RELEASES_FILE, CARD_FILE = "releases.safetensors", "README.md"
_MOST_RECEIPT = 1 << 28
_BESIDES = 1 << 20
"""Bytes of a file beside its numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SavedHead:
  """A head read back from disk; its files belong together."""

  path: Path
  trained: TrainedHead  # as `train` made it; its ε is that of all its releases
  receipt: dict[str, Any]  # "stated" and "follows"
  receipt_sha256: str  # of the file's bytes

  @property
  def stated(self) -> dict[str, Any]:
    return self.receipt["stated"]

  @property
  def head(self) -> LinearHead:
    """The weights alone."""
    return self.trained.head


def write_head(
  folder: Path,
  trained: TrainedHead,
  info: CacheInfo,
  part: Part = WHOLE,
  charge: str | None = None,
  parent_stated: str | None = None,
) -> dict[str, Any]:
  """Writes the four files into a new or empty folder; returns the receipt."""
  head = trained.head
  # It writes a buffer as it lies in memory, whatever the strides.
  weights, state = (
    safetensors.numpy.save({k: np.array(v, order="C") for k, v in of.items()})
    for of in ({"kernel": head.kernel, "bias": head.bias}, trained.state)
  )
  more = {"charge": charge, "went_on_from": parent_stated}
  more |= {"weights_sha256": sha256(weights), "releases_sha256": sha256(state)}
  receipt = make_receipt(trained, info, part, **more)
  folder.mkdir(parents=True, exist_ok=True)
  folder.chmod(folder.stat().st_mode if trained.private else 0o700)
  for name, content in {
    WEIGHTS_FILE: weights,
    RELEASES_FILE: state,
    RECEIPT_FILE: (json.dumps(receipt, indent=2) + "\n").encode(),
    CARD_FILE: card(receipt).encode(),
  }.items():
    with disk_errors(folder / name):
      # Its mode, less the umask, is that of its making.
      flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
      mode = 0o666 if trained.private else 0o600
      with open(os.open(folder / name, flags, mode), "wb") as file:
        file.write(content)
  return receipt


def read_head(path: str | os.PathLike) -> SavedHead:
  """Reads a head and checks that its files belong together.

  InputError: a file is missing, no file, damaged, or of another head; or the
  receipt's numbers do not follow.
  """
  folder = Path(path)
  if not os.path.lexists(folder / RECEIPT_FILE):
    said = f"{folder} is not a head: it has no {RECEIPT_FILE}"
    raise InputError(f"{said}; give a folder that `oneshot-dp train` wrote.")
  content = read_regular(folder / RECEIPT_FILE, _MOST_RECEIPT)
  try:
    receipt = msgspec.json.decode(content)
    check_receipt(receipt)
  except (msgspec.MsgspecError, RecursionError, ValueError) as error:
    raise _damaged(folder / RECEIPT_FILE, f"{str(error)!a:.300}") from error
  stated = receipt["stated"]
  d, k = stated["feature_dim"], stated["num_classes"]
  sizes = (r["count"] * math.prod(r["shape"]) for r in stated["releases"])
  loaded = {}
  for of, name, size in (
    ("weights_sha256", WEIGHTS_FILE, 4 * (d + 1) * k),
    ("releases_sha256", RELEASES_FILE, 16 * (d + 1) * k + 16 * sum(sizes)),
  ):
    data = read_regular(folder / name, size + _BESIDES)
    if sha256(data) != stated[of]:
      raise _damaged(folder / name, "its receipt is about another file")
    try:
      loaded[name] = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, LookupError) as error:
      raise _damaged(folder / name, str(error)) from error
  weights = loaded[WEIGHTS_FILE]
  shapes = {name: (each.shape, each.dtype) for name, each in weights.items()}
  if shapes != {"kernel": ((d, k), np.float32), "bias": ((k,), np.float32)}:
    raise _damaged(folder / WEIGHTS_FILE, f"it holds {shapes}")
  if not all(np.isfinite(each).all() for each in weights.values()):
    raise _damaged(folder / WEIGHTS_FILE, "a weight is not finite")
  if read_regular(folder / CARD_FILE, _MOST_RECEIPT) != card(receipt).encode():
    raise _damaged(folder / CARD_FILE, "it is about another receipt")
  releases = tuple(
    Release(each["name"], tuple(each["shape"]), each["noise_multiplier"])
    for each in stated["releases"]
    for _ in range(each["count"])
  )
  names = "delta", "options", "noise_source", "private", "epsilon"
  known = stated | receipt["follows"]
  trained = TrainedHead(
    head=LinearHead(**weights, unit_norm=stated["input"] == UNIT_NORM),
    name=stated["head"],
    releases=releases,
    state=loaded[RELEASES_FILE],
    mu_squared=known["mu_squared"],
    **{name: known[name] for name in names},
  )
  found = {"path": folder, "trained": trained, "receipt": receipt}
  return SavedHead(**found, receipt_sha256=sha256(content))


def save_head(
  head: PrivateHead,
  directory: str | os.PathLike,
  *,
  dataset: str,
  split: str = "train",
  backbone: str = "imported features",
) -> None:
  """Writes a head as `oneshot-dp train` does; in no ledger, as it says.

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(2), 500, axis=0), np.arange(1000) // 500
  >>> head = oneshot_dp.train_head(
  ...   rows, labels, num_classes=2, epsilon=2.0, delta=1e-6
  ... )
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   oneshot_dp.save_head(head, f"{folder}/head", dataset="pets")
  ...   again = oneshot_dp.load_head(f"{folder}/head")
  >>> bool((again.head.kernel == head.head.kernel).all()), again.is_charged
  (True, False)

  `dataset` and `split` are public names of the private data, `backbone` is that
  of what made the embeddings.

  Raises:
    InputError: `directory` is there already, or a name is none.
    RunError: the disk refuses it.
  """
  if not isinstance(head, PrivateHead):
    raise InputError("save_head takes a head, and then where to save it.")
  info = CacheInfo(
    dataset=dataset,
    split=split,
    source_num_examples=head.num_examples,
    feature_dim=head.head.kernel.shape[0],
    class_names=head.class_names,
    num_classes_source=head.num_classes_source,
    backbone={"name": backbone},
    unit=head.privacy_unit,
  )
  with StagedOutput(Path(directory)) as output:
    write_head(output.staging, head.trained, info)
    output.publish()


def load_head(directory: str | os.PathLike) -> PrivateHead:
  """Reads a head that `save_head` or `oneshot-dp train` wrote.

  InputError: it is not what its receipt says.
  """
  saved = read_head(directory)
  names = "num_examples", "num_classes_source", "privacy_unit"
  more: dict[str, Any] = {name: saved.stated[name] for name in names}
  more["class_names"] = tuple(saved.stated["class_names"])
  more["is_charged"] = saved.stated["charge"] is not None
  return PrivateHead(trained=saved.trained, **more)


def _damaged(path: Path, what: str) -> InputError:
  return InputError(f"{path} is damaged: {what}; train the head again.")
