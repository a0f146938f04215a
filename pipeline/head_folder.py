"""A head on disk: weights, what it was made of, receipt and model card.

HEAD/head.safetensors       kernel [d, K], bias [K], float32
HEAD/releases.safetensors   the noisy sums, public, for `train --from`
HEAD/receipt.json           what is stated, and what follows
HEAD/README.md              the same for people

A head that is NOT PRIVATE gives the private sums away: the folder has mode
0700 and its files 0600. Others have what the umask says.
"""

import dataclasses
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import disk_errors, open_regular
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.linear_dp.private_sums import Release
from oneshot_dp.linear_dp.train import Before, TrainedHead
from oneshot_dp.pipeline.card import card
from oneshot_dp.pipeline.deliver import RECEIPT_FILE, WEIGHTS_FILE, alone
from oneshot_dp.pipeline.receipt import UNIT_NORM, check_receipt, make_receipt

RELEASES_FILE, CARD_FILE = "releases.safetensors", "README.md"
_MOST_RECEIPT = 1 << 28
_BESIDES = 1 << 20
"""Bytes of a file beside its numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SavedHead:
  """A head read back from disk; its receipt follows, and is of these bytes.

  Attributes:
    path: its folder.
    head: the weights.
    receipt: "stated" and "follows".
    receipt_sha256: of the file's bytes.
    state: `TrainedHead.state`.
  """

  path: Path
  head: LinearHead
  receipt: dict[str, Any]
  receipt_sha256: str
  state: Mapping[str, np.ndarray]

  @property
  def stated(self) -> dict[str, Any]:
    return self.receipt["stated"]

  @property
  def follows(self) -> dict[str, Any]:
    return self.receipt["follows"]

  @property
  def private(self) -> bool:
    return self.stated["private"]

  @property
  def releases(self) -> tuple[Release, ...]:
    """All releases, one by one."""
    return tuple(
      Release(run["name"], tuple(run["shape"]), run["noise_multiplier"])
      for run in self.stated["releases"]
      for _ in range(run["count"])
    )

  def before(self) -> Before:
    """What a head of a larger ε goes on from."""
    if not self.releases:
      raise InputError(
        f"{self.path} has no noise: there is nothing to go on from."
      )
    return Before(
      name=self.stated["head"],
      state=self.state,
      mu_squared=self.follows["mu_squared"],
      releases=self.releases,
      options=self.stated["options"],
    )


def write_head(
  folder: Path,
  trained: TrainedHead,
  info: CacheInfo,
  part: Part = WHOLE,
  charge: str | None = None,
  went_on_from: str | None = None,
) -> dict[str, Any]:
  """Writes the four files into a new or empty folder; returns the receipt."""
  head = trained.head
  # It writes the buffer as it lies in memory, whatever the strides.
  weights = safetensors.numpy.save(
    {
      "kernel": np.ascontiguousarray(head.kernel, np.float32),
      "bias": np.ascontiguousarray(head.bias, np.float32),
    }
  )
  state = safetensors.numpy.save(
    {k: np.asarray(v, order="C") for k, v in trained.state.items()}
  )
  receipt = make_receipt(
    trained, info, part, charge, _sha256(weights), _sha256(state), went_on_from
  )
  folder.mkdir(parents=True, exist_ok=True)
  if not trained.private:
    folder.chmod(0o700)
  for name, content in {
    WEIGHTS_FILE: weights,
    RELEASES_FILE: state,
    RECEIPT_FILE: (json.dumps(receipt, indent=2) + "\n").encode(),
    CARD_FILE: card(receipt).encode(),
  }.items():
    with disk_errors(folder / name):
      # Its mode, less the umask, is that of its making.
      mode = 0o666 if trained.private else 0o600
      flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
      with open(os.open(folder / name, flags, mode), "wb") as file:
        file.write(content)
  return receipt


def head_bytes(info: CacheInfo, trained_state: int) -> int:
  """What the files of one head take, at most."""
  d, k = info.feature_dim, info.num_classes
  names = sum(len(name.encode()) for name in info.class_names)
  return 4 * (d + 1) * k + trained_state + 12 * names + _BESIDES


def read_head(path: str | os.PathLike) -> SavedHead:
  """Reads a head and checks that its files belong together.

  Raises:
    InputError: a file is missing, no file, damaged, or of another head; or the
      receipt's numbers do not follow.
  """
  folder = Path(path)
  place = folder / RECEIPT_FILE
  if not os.path.lexists(place):
    raise InputError(
      f"{folder} is not a head: it has no {RECEIPT_FILE}; give a folder that"
      " `oneshot-dp train` or `sweep` wrote."
    )
  content = _content(place, _MOST_RECEIPT)
  try:
    receipt = msgspec.json.decode(content)
    check_receipt(receipt)
  except (msgspec.MsgspecError, RecursionError, InputError) as error:
    raise InputError(f"{place}: {str(error)!a:.400}.") from error
  stated = receipt["stated"]
  d, k = stated["feature_dim"], stated["num_classes"]
  sizes = {
    "weights": 4 * (d + 1) * k,
    "releases": sum(
      32 * each["count"] * math.prod(each["shape"])
      for each in stated["releases"]
    )
    + 16 * (d + 1) * k,
  }
  loaded = {}
  for what, name in ("weights", WEIGHTS_FILE), ("releases", RELEASES_FILE):
    data = _content(folder / name, sizes[what] + _BESIDES)
    if _sha256(data) != stated[f"{what}_sha256"]:
      raise InputError(
        f"{folder / name} is not the file that {place} is about: restore it, or"
        " train the head again."
      )
    try:
      loaded[what] = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
      raise _damaged(folder / name, str(error)) from error
  weights = loaded["weights"]
  shapes = {name: (each.shape, each.dtype) for name, each in weights.items()}
  if shapes != {"kernel": ((d, k), np.float32), "bias": ((k,), np.float32)}:
    raise _damaged(folder / WEIGHTS_FILE, f"it holds {shapes}")
  if not all(np.isfinite(each).all() for each in weights.values()):
    raise _damaged(folder / WEIGHTS_FILE, "a weight is not finite")
  if _content(folder / CARD_FILE, _MOST_RECEIPT) != card(receipt).encode():
    raise InputError(
      f"{folder / CARD_FILE} is not about this {RECEIPT_FILE}: one was edited."
    )
  head = LinearHead(**weights, unit_norm=stated["input"] == UNIT_NORM)
  return SavedHead(
    path=folder,
    head=head,
    receipt=receipt,
    receipt_sha256=_sha256(content),
    state=loaded["releases"],
  )


def save_head(
  head: PrivateHead,
  directory: str | os.PathLike,
  *,
  dataset: str,
  split: str = "train",
  backbone: str = "imported features",
) -> None:
  """Writes a head as `oneshot-dp train` does, with its receipt and card.

  The receipt says that no ledger was charged, and `oneshot-dp verify` repeats
  it. A head that is NOT PRIVATE is written for its owner only (0700, 0600).

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(2), 500, axis=0), np.arange(1000) // 500
  >>> head = oneshot_dp.train_head(
  ...   rows, labels, num_classes=2, epsilon=2.0, delta=1e-6
  ... )
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   save_head(head, f"{folder}/head", dataset="pets")
  ...   again = oneshot_dp.load_head(f"{folder}/head")
  >>> bool((again.head.kernel == head.head.kernel).all()), again.is_charged
  (True, False)

  Args:
    head: from `train_head` or `train_heads`.
    directory: one that is not there yet.
    dataset: public name of the private data.
    split: public name of the split.
    backbone: what made the embeddings; the head fits caches with the same name
      and d.

  Returns:
    Nothing.

  Raises:
    InputError: `directory` holds something, or a name is none.
    RunError: the disk refuses it.
  """
  info = CacheInfo(
    dataset=dataset,
    split=split,
    source_num_examples=head.num_examples,
    feature_dim=head.head.feature_dim,
    class_names=head.class_names,
    num_classes_source=head.num_classes_source,
    backbone={"name": backbone},
    embedding_dtype="float32",
    unit=head.privacy_unit,
  )
  with alone(Path(directory)) as (place, work):
    try:
      write_head(work / "whole", head.trained, info)
      (work / "whole").rename(place)
    except BaseException:
      shutil.rmtree(work / "whole", ignore_errors=True)
      raise


def load_head(directory: str | os.PathLike) -> PrivateHead:
  """Reads a head that `save_head`, `oneshot-dp train` or `sweep` wrote.

  Its receipt is computed anew, as by `oneshot-dp verify`.

  >>> import oneshot_dp
  >>> oneshot_dp.load_head("nowhere")
  Traceback (most recent call last):
    ...
  oneshot_dp.configs.errors.InputError: nowhere is not a head: ...

  Args:
    directory: of the head.

  Returns:
    The head; `is_charged` says whether its receipt names a ledger's charge.

  Raises:
    InputError: there is no head, or it is not what its receipt says.
  """
  saved = read_head(directory)
  stated, follows = saved.stated, saved.follows
  return PrivateHead(
    trained=TrainedHead(
      head=saved.head,
      name=stated["head"],
      epsilon=follows["epsilon"],
      delta=stated["delta"],
      draw=0,
      mu_squared=follows["mu_squared"],
      releases=saved.releases,
      state=saved.state,
      options=stated["options"],
      noise_source=stated["noise_source"],
      private=stated["private"],
    ),
    num_examples=stated["num_examples"],
    class_names=tuple(stated["class_names"]),
    num_classes_source=stated["num_classes_source"],
    privacy_unit=stated["privacy_unit"],
    is_charged=stated["charge"] is not None,
  )


def _content(path: Path, most_bytes: int) -> bytes:
  with open_regular(path, most_bytes) as file:
    return file.read()


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


def _damaged(path: Path, what: str) -> InputError:
  return InputError(f"{path} is damaged ({what}): train the head again.")
