"""Reads and writes the folder of a head.

HEAD/head.safetensors       kernel [d, K], bias [K], float32
HEAD/releases.safetensors   the noisy sums, public, for `train --from`
HEAD/receipt.json           what is stated, and what follows
HEAD/README.md              the same for people

A head that is NOT PRIVATE gives the private sums away: its folder has mode 0700
and its files 0600. Other heads have the modes that the umask gives.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.extract import places
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import disk_errors
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.linear_dp.private_sums import Release
from oneshot_dp.linear_dp.train import TrainedHead
from oneshot_dp.pipeline.heads.model_card import is_edited, render_card
from oneshot_dp.pipeline.heads.receipt import (
  NOT_PRIVATE,
  UNIT_NORM,
  check_receipt,
  make_receipt,
)
from oneshot_dp.pipeline.ledger.delivery import (
  RECEIPT_FILE,
  WEIGHTS_FILE,
  output_at,
)
from oneshot_dp.pipeline.ledger.entries import sha256

RELEASES_FILE = "releases.safetensors"
CARD_FILE = "README.md"
_MOST_RECEIPT_BYTES = 1 << 28
_HEADER_BYTES = 1 << 20
"""Bytes that a file of tensors may have beside its numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SavedHead:
  """A head that was read from disk, and whose files belong together.

  Attributes:
    path: its folder.
    trained: the head as `train` made it; its ε is that of all its releases.
    receipt: "format", "stated" and "follows", as JSON has them; checked.
    receipt_sha256: of the file's bytes.
    has_edited_card: whether the card is not as `train` wrote it. It says the
      guarantee to people, and nothing is read from it.
  """

  path: Path
  trained: TrainedHead
  receipt: dict[str, Any]
  receipt_sha256: str
  has_edited_card: bool = False

  @property
  def stated(self) -> dict[str, Any]:
    """What the receipt states; see `receipt.Stated`."""
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
  charge_id: str | None = None,
  parent_charge_id: str | None = None,
) -> dict[str, Any]:
  """Writes the four files of a head.

  Args:
    folder: a new or empty folder.
    trained: the head.
    info: metadata of the cache that it was trained on.
    part: the part of that cache.
    charge_id: the charge that paid for it; None if no ledger was charged.
    parent_charge_id: the charge of the head that it continues from, if any.

  Returns:
    The receipt, as JSON has it.

  Raises:
    RunError: the disk refuses.
  """
  # The receipt names the other files by their digests, so they are made in
  # memory first, and the receipt after them. The card is made of the receipt.
  weights = _to_safetensors(
    {"kernel": trained.head.kernel, "bias": trained.head.bias}
  )
  releases = _to_safetensors(trained.state)
  receipt = make_receipt(
    trained,
    info,
    part,
    charge_id=charge_id,
    parent_charge_id=parent_charge_id,
    weights_sha256=sha256(weights),
    releases_sha256=sha256(releases),
  )
  files = {
    WEIGHTS_FILE: weights,
    RELEASES_FILE: releases,
    RECEIPT_FILE: (json.dumps(receipt, indent=2) + "\n").encode(),
    CARD_FILE: render_card(receipt).encode(),
  }
  # The folder of a head that is NOT PRIVATE is closed before anything is in it.
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
    if not trained.private:
      folder.chmod(0o700)
  for name, content in files.items():
    _write_new_file(folder / name, content, is_private=trained.private)
  return receipt


def read_head(path: str | os.PathLike) -> SavedHead:
  """Reads a head and checks that its files belong together.

  Args:
    path: the head's folder, on a disk, at gs:// or s3://.

  Returns:
    The head with its receipt.

  Raises:
    InputError: a file is missing, not a file, damaged, or another head's; or
      the receipt's numbers do not follow.
  """
  folder = places.as_place(path)
  receipt, receipt_sha256 = _read_receipt(folder)
  stated = receipt["stated"]
  weights = _read_weights(folder, stated)
  state = _read_releases(folder, stated)
  card = places.read(folder / CARD_FILE, _MOST_RECEIPT_BYTES)
  # Numbers are those that were derived again and compared, not those that
  # somebody wrote.
  follows = receipt["follows"]
  trained = TrainedHead(
    head=weights,
    name=stated["head"],
    epsilon=follows["epsilon"],
    delta=stated["delta"],
    mu_squared=follows["mu_squared"],
    releases=_stated_releases(stated),
    state=state,
    options=stated["options"],
    noise_source=stated["noise_source"],
    private=stated["private"],
  )
  return SavedHead(
    path=folder,
    trained=trained,
    receipt=receipt,
    receipt_sha256=receipt_sha256,
    has_edited_card=is_edited(card, folder / CARD_FILE, receipt),
  )


def save_head(
  head: PrivateHead,
  directory: str | os.PathLike,
  *,
  dataset: str,
  split: str = "train",
  backbone: str = "imported features",
) -> None:
  """Writes a head as `oneshot-dp train` does; the receipt names no ledger.

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

  Args:
    head: what `train_head` returned.
    directory: the folder to write, which must not exist, on a disk, at gs://
      or s3://.
    dataset: public name of the private data.
    split: public name of its split.
    backbone: public name of what made the embeddings.

  Raises:
    InputError: `directory` exists already, or a name is not one; or it is in
      a bucket, and the head NOT PRIVATE.
    RunError: the disk or the store refuses.
  """
  if not isinstance(head, PrivateHead):
    raise InputError("save_head takes a head, and then where to save it.")
  out = places.as_place(directory)
  if not head.trained.private:
    refuse_exposed(out)
  # A head of arrays has no cache; its receipt states what is known all the
  # same.
  info = CacheInfo(
    dataset=dataset,
    split=split,
    source_num_examples=head.num_examples,
    feature_dim=head.head.feature_dim,
    class_names=head.class_names,
    num_classes_source=head.num_classes_source,
    backbone={"name": backbone},
    unit=head.privacy_unit,
  )
  with output_at(out) as output:
    write_head(output.staging, head.trained, info)
    output.publish()


def load_head(directory: str | os.PathLike) -> PrivateHead:
  """Reads a head that `save_head` or `oneshot-dp train` wrote.

  Args:
    directory: the head's folder, on a disk, at gs:// or s3://.

  Returns:
    The head, to predict with.

  Raises:
    InputError: it is not what its receipt says.
  """
  saved = read_head(directory)
  stated = saved.stated
  return PrivateHead(
    trained=saved.trained,
    num_examples=stated["num_examples"],
    class_names=tuple(stated["class_names"]),
    num_classes_source=stated["num_classes_source"],
    privacy_unit=stated["privacy_unit"],
    is_charged=stated["charge"] is not None,
  )


def refuse_exposed(out: Path) -> None:
  """Raises InputError if what is NOT PRIVATE would be written into a bucket."""
  # On a disk it has mode 0600. Who may read a bucket is not set here.
  if isinstance(out, places.Url):
    raise InputError(
      f"{out}: what is {NOT_PRIVATE} is written to a disk only, where it is its"
      " owner's alone; choose a folder there."
    )


def _to_safetensors(arrays: Mapping[str, Any]) -> bytes:
  # The library writes a buffer as it lies in memory, whatever the strides.
  contiguous = {}
  for name, array in arrays.items():
    contiguous[name] = np.array(array, order="C")
  return safetensors.numpy.save(contiguous)


def _write_new_file(path: Path, content: bytes, *, is_private: bool) -> None:
  """Writes a file that must not exist; what is not private is the owner's.

  It has its mode, less the umask, from the moment it is made.
  """
  mode = 0o666 if is_private else 0o600
  with disk_errors(path):
    # O_EXCL refuses what is there already, links included: nothing can be put
    # in the way that is written through.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(handle, "wb") as file:
      file.write(content)


def _describe_no_head(folder: Path) -> str:
  """Describes a folder that has no receipt, for messages."""
  if places.exists(folder / "results.json"):
    return "is a run of several heads, each in a folder of its own in heads/"
  # A store has no folders that could exist.
  if not isinstance(folder, places.Url) and not os.path.lexists(folder):
    return "does not exist"
  return f"is not a head: it has no {RECEIPT_FILE}"


def _read_receipt(folder: Path) -> tuple[dict[str, Any], str]:
  """The checked receipt, and the SHA-256 of its bytes."""
  path = folder / RECEIPT_FILE
  if not places.exists(path):
    raise InputError(
      f"{folder} {_describe_no_head(folder)}; give a folder that `oneshot-dp"
      " train` wrote."
    )
  content = places.read(path, _MOST_RECEIPT_BYTES)
  try:
    receipt = msgspec.json.decode(content)
    check_receipt(receipt)
  except (msgspec.MsgspecError, RecursionError, ValueError) as error:
    raise _damaged(path, f"{str(error)!a:.300}") from error
  return receipt, sha256(content)


def _read_weights(folder: Path, stated: Mapping[str, Any]) -> LinearHead:
  """The kernel [d, K] and bias [K], as the receipt says them."""
  path = folder / WEIGHTS_FILE
  d = stated["feature_dim"]
  k = stated["num_classes"]
  # The receipt was checked, but anybody may have written it: sizes bound what
  # is read before it is read, and shapes are compared after.
  weights = _read_safetensors(path, stated["weights_sha256"], 4 * (d + 1) * k)
  form = {name: (array.shape, array.dtype) for name, array in weights.items()}
  if form != {"kernel": ((d, k), np.float32), "bias": ((k,), np.float32)}:
    raise _damaged(path, f"it holds {form}")
  if not all(np.isfinite(array).all() for array in weights.values()):
    raise _damaged(path, "a weight is not finite")
  return LinearHead(
    kernel=weights["kernel"],
    bias=weights["bias"],
    unit_norm=stated["input"] == UNIT_NORM,
  )


def _read_releases(
  folder: Path, stated: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """Reads what a larger ε continues from; see `TrainedHead.state`."""
  d = stated["feature_dim"]
  k = stated["num_classes"]
  # A statistic is kept once, as the average of its releases, however many
  # there were; and the state of the head has about the size of its weights.
  num_bytes = 16 * (d + 1) * k
  for release in stated["releases"]:
    num_bytes += 16 * math.prod(release["shape"])
  return _read_safetensors(
    folder / RELEASES_FILE, stated["releases_sha256"], num_bytes
  )


def _read_safetensors(
  path: Path, expected_sha256: str, num_bytes: int
) -> dict[str, np.ndarray]:
  """The arrays of a file that the receipt names, of at most so many bytes."""
  # The digest comes before the parser: safetensors sees only bytes that the
  # receipt names.
  content = places.read(path, num_bytes + _HEADER_BYTES)
  if sha256(content) != expected_sha256:
    raise _damaged(path, "its receipt belongs to another file")
  try:
    return safetensors.numpy.load(content)
  except (safetensors.SafetensorError, ValueError, LookupError) as error:
    raise _damaged(path, str(error)) from error


def _stated_releases(stated: Mapping[str, Any]) -> tuple[Release, ...]:
  """The releases of a receipt; a count stays a count, however large."""
  releases = []
  for group in stated["releases"]:
    releases.append(
      Release(
        name=group["name"],
        shape=tuple(group["shape"]),
        noise_multiplier=group["noise_multiplier"],
        count=group["count"],
      )
    )
  return tuple(releases)


def _damaged(path: Path, fault: str) -> InputError:
  return InputError(
    f"{path} is damaged: {fault}; put back the file as train wrote it, or train"
    " another head, which is charged."
  )
