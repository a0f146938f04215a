"""A head on disk: weights, receipt and model card.

HEAD/head.safetensors   kernel [d, K], bias [K], float32
HEAD/receipt.json       the privacy statement
HEAD/README.md          the same for people

A head that is NOT PRIVATE gives the private sums away: the directory has mode
0700 and its files 0600. Others have what the umask says.
"""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import safetensors
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.identity import BackboneIdentity, sha256_of
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.extract.storage.typed_json import (
  OBJECT,
  parse_json,
  read_content,
)
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.trainer import AS_STORED, UNIT_NORM, TrainedHead
from oneshot_dp.pipeline.ledger.ledger import Published
from oneshot_dp.pipeline.saved_head.earlier_receipt import notes_on, upgraded
from oneshot_dp.pipeline.saved_head.make_receipt import make_receipt
from oneshot_dp.pipeline.saved_head.model_card import model_card

WEIGHTS_FILE = "head.safetensors"
INPUT = "input"
"""In the metadata of the weights: what the kernel is multiplied with."""
RECEIPT_FILE = "receipt.json"
CARD_FILE = "README.md"
_NEW = os.O_CREAT | os.O_EXCL


class _Data(TypedDict):
  dataset: str
  split: str
  class_names: tuple[str, ...]
  backbone: BackboneIdentity
  backbone_fingerprint: str


class Receipt(TypedDict):
  """What every receipt has, of whichever version; see `check_receipt`."""

  private: bool
  privacy: OBJECT
  composition: OBJECT
  mechanism: OBJECT
  data: _Data
  training: OBJECT
  software: OBJECT


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedHead:
  """A head read back from disk.

  `receipt` is in the fields of this version, `receipt_sha256` a digest of it as
  it was written, and `notes` say what is to be known of an earlier version's.
  """

  head: LinearHead
  receipt: dict[str, Any]
  receipt_sha256: str
  notes: tuple[str, ...]


def write_head(
  directory: Path, trained: TrainedHead, cache: CacheInfo
) -> dict[str, Any]:
  """Writes the three files into an empty directory; returns the receipt."""
  head = trained.head
  # It writes the buffer as it lies in memory, whatever the strides.
  weights = safetensors.numpy.save(
    {
      "kernel": np.ascontiguousarray(head.kernel),
      "bias": np.ascontiguousarray(head.bias),
    },
    metadata={INPUT: UNIT_NORM if head.unit_norm else AS_STORED},
  )
  receipt = make_receipt(
    trained, cache, head_sha256=hashlib.sha256(weights).hexdigest()
  )
  directory.mkdir(parents=True, exist_ok=True)
  mode = 0o666
  if not trained.statement.is_private:
    directory.chmod(0o700)
    mode = 0o600
  for name, content in {
    WEIGHTS_FILE: weights,
    RECEIPT_FILE: (json.dumps(receipt, indent=2) + "\n").encode(),
    CARD_FILE: model_card(receipt).encode(),
  }.items():
    # Its mode, less the umask, is that of its making.
    descriptor = os.open(directory / name, os.O_WRONLY | _NEW, mode)
    with open(descriptor, "wb") as file:
      file.write(content)
  return receipt


def head_bytes(cache: CacheInfo) -> int:
  """What the files of one head take, and a little more."""
  return 4 * (cache.feature_dim + 1) * cache.num_classes + (1 << 17)


def bytes_of(directory: Path) -> Published:
  """What `Ledger.publish` is told of a head that is about to leave."""
  weights, receipt = (
    (directory / name).read_bytes() for name in (WEIGHTS_FILE, RECEIPT_FILE)
  )
  return Published(
    entry=str(json.loads(receipt)["composition"]["ledger_entry"]),
    head_sha256=hashlib.sha256(weights).hexdigest(),
    receipt_sha256=hashlib.sha256(receipt).hexdigest(),
  )


def read_head(directory: Path) -> SavedHead:
  """Reads a head; InputError where a file is missing or damaged."""
  for name in (WEIGHTS_FILE, RECEIPT_FILE):
    try:
      (directory / name).open("rb").close()
    except (FileNotFoundError, NotADirectoryError) as error:
      raise InputError(
        f"{directory} is not a head: it has no {name}; give a directory that"
        " `oneshot-dp train` or `sweep` wrote."
      ) from error
    except OSError as error:
      raise InputError(
        f"{directory / name} cannot be read: {error.strerror}."
      ) from error
  try:
    with safetensors.safe_open(directory / WEIGHTS_FILE, "np") as file:
      kernel, bias = file.get_tensor("kernel"), file.get_tensor("bias")
      of_rows = (file.metadata() or {})[INPUT]
    if kernel.ndim != 2 or bias.shape != kernel.shape[1:]:
      raise ValueError(f"kernel {kernel.shape}, bias {bias.shape}")
    if of_rows not in (UNIT_NORM, AS_STORED):
      raise ValueError(f"{INPUT} {of_rows!r}")
    head = LinearHead(kernel=kernel, bias=bias, unit_norm=of_rows == UNIT_NORM)
  except (safetensors.SafetensorError, KeyError, ValueError) as error:
    raise InputError(
      f"{directory / WEIGHTS_FILE} is damaged ({error}); train the head again."
    ) from error
  place = directory / RECEIPT_FILE
  content, mend = read_content(place), "train the head again"
  receipt = parse_json(place, content, mend=mend)
  parse_json(place, content, Receipt, mend)  # has what every receipt has
  return SavedHead(
    head=head,
    receipt=upgraded(receipt),
    receipt_sha256=sha256_of(receipt),
    notes=tuple(notes_on(receipt)),
  )
