"""Heads of a notebook on disk, in the directory of the command line."""

import dataclasses
import os
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.identity import BackboneIdentity, CacheIdentity
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.saved_head.check_receipt import plan_of, statement_of
from oneshot_dp.pipeline.saved_head.directory import write_head
from oneshot_dp.pipeline.saved_head.verify import read_sound_head


def save_head(
  head: PrivateHead,
  directory: str | os.PathLike,
  *,
  dataset: str,
  split: str = "train",
  backbone: str = "imported features",
) -> None:
  """Writes a head as `oneshot-dp train` does: weights, receipt, model card.

  The receipt says that no ledger was charged, and `oneshot-dp verify` repeats
  it. A head that is NOT PRIVATE is written for its owner only (0700, 0600).

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(2), 500, axis=0), np.arange(1000) // 500
  >>> head = oneshot_dp.train_head(
  ...   rows,
  ...   labels,
  ...   num_classes=2,
  ...   class_names=["cat", "dog"],
  ...   epsilon=2.0,
  ...   delta=1e-6,
  ... )
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   save_head(head, f"{folder}/head", dataset="pets")
  ...   again = oneshot_dp.load_head(f"{folder}/head")
  >>> again.class_names, again.receipt() == head.receipt()
  (('cat', 'dog'), True)

  Args:
    head: from `train_head` or `train_heads`.
    directory: one that is not there yet, or is empty.
    dataset: public name of the private data.
    split: public name of the split, no part in percent.
    backbone: what made the embeddings; as `write_cache` has it, the head fits
      caches with the same name and d.

  Returns:
    Nothing.

  Raises:
    InputError: `directory` holds something; a head that was read from disk
      (copy its directory), or a name that is none. Nothing is written then.
  """
  place = Path(directory)
  if head.trained.ledger_entry:
    raise InputError(
      "this head is of a directory with a charged receipt: copy that instead."
    )
  if place.exists() and (not place.is_dir() or any(place.iterdir())):
    raise InputError(
      f"{place} already holds something: name another directory."
    )
  info = CacheInfo.of(
    CacheIdentity(
      dataset=dataset,
      split=split,
      source_num_examples=head.num_examples,
      feature_dim=head.head.feature_dim,
      class_names=head.class_names,
      num_classes_source=head.num_classes_source,
      backbone=BackboneIdentity(name=backbone),
      embedding_dtype="float32",
      privacy_unit=head.privacy_unit,
    ),
    num_examples=head.num_examples,
    skipped_example_ids=(),
  )
  if info.is_part:
    raise InputError(
      f"split={split!r} is a part of a split: name it, n is what the head was"
      " trained on."
    )
  write_head(place, head.trained, info)


def load_head(directory: str | os.PathLike) -> PrivateHead:
  """Reads a head that `save_head`, `oneshot-dp train` or `sweep` wrote.

  Its receipt is recomputed as by `oneshot-dp verify`.

  >>> import oneshot_dp
  >>> oneshot_dp.load_head("nowhere")
  Traceback (most recent call last):
    ...
  oneshot_dp.configs.errors.InputError: nowhere is not a head: ...

  Args:
    directory: of the head.

  Returns:
    The head; `is_charged` says whether its receipt names a ledger's entry.

  Raises:
    InputError: there is no head, or it is not what its receipt says.
  """
  saved = read_sound_head(Path(directory))
  receipt = saved.receipt
  mechanism = mechanism_of(receipt["mechanism"])
  entry = receipt["composition"]["ledger_entry"]
  return PrivateHead(
    trained=TrainedHead(
      head=saved.head,
      # Its quotient of noise and sensitivity may differ in the last bit.
      statement=dataclasses.replace(
        statement_of(receipt["privacy"], mechanism),
        noise_multiplier=receipt["privacy"]["noise_multiplier"],
      ),
      mechanism=mechanism,
      plan=plan_of(receipt, mechanism.sampling),
      settings=receipt["training"],
      draw=0,
      ledger_entry=entry or "",
    ),
    num_examples=receipt["data"]["num_examples"],
    class_names=tuple(receipt["data"]["class_names"]),
    num_classes_source=receipt["data"]["num_classes_source"],
    privacy_unit=receipt["privacy"]["privacy_unit"],
    is_charged=entry is not None,
  )
