"""Accuracy of many heads in one pass: exact on public labels, or with noise."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.statistics import (
  correct_predictions,
  integer_heads,
  unit_count,
)

_BATCH, _AMONG = 1024, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracy:
  """Shares of n rows whose label is the best, or among the best five.

  Of noisy counts there are top1 and about n alone. Recall is top-1 of each
  class, None of one without rows; balanced is its mean over the others.
  """

  top1: float
  top5: float | None = None
  num_examples: int
  balanced: float | None = None
  recall: tuple[float | None, ...] | None = None
  class_rows: tuple[int, ...] | None = None


def evaluate_heads(
  heads: Sequence[Any],
  blocks: Iterable[Mapping[str, np.ndarray]],
  on_rows: Callable[[int], object] = lambda rows: None,
) -> list[Accuracy]:
  """The exact accuracies of every head, on rows whose labels are *public*.

  Of equal logits the first class wins, as by argmax; NaN is no right answer.

  >>> eye = np.eye(3, dtype=np.float32)
  >>> head = LinearHead(kernel=eye, bias=np.zeros(3, np.float32))
  >>> rows = {"embedding": eye, "label": np.array([0, 1, 0])}
  >>> (accuracy,) = evaluate_heads([head], [rows])
  >>> round(accuracy.top1, 3), accuracy.top5, accuracy.num_examples
  (0.667, 1.0, 3)

  Args:
    heads: `LinearHead`s or `PrivateHead`s, all of one shape.
    blocks: columns embedding [rows, d] and label [rows]; read once.
    on_rows: told how many rows there are, block by block.

  InputError: heads of several shapes, no rows, another feature_dim, or a label
  outside [0, K).
  """
  heads = [h if isinstance(h, LinearHead) else h.head for h in heads]
  shapes = sorted({head.kernel.shape for head in heads})
  if len(shapes) > 1:
    raise InputError(f"heads of shapes {shapes}: score those of one together.")
  if not heads:
    return []
  weights = jax.device_put([(h.kernel, h.ranking().bias) for h in heads])
  d, k = heads[0].kernel.shape
  first = np.zeros((len(heads), k), np.int64)
  among_five = np.zeros(len(heads), np.int64)
  rows = np.zeros(k, np.int64)
  for block in blocks:
    embedding, label = block["embedding"], block["label"]
    if (found := embedding.shape[-1]) != d:
      raise InputError(
        f"The rows have feature_dim={found}, the head {d}: they come from"
        " different backbones."
      )
    if ((label < 0) | (label >= k)).any():
      raise InputError(f"a label is outside 0 to {k - 1}, the head's classes.")
    on_rows(len(label))
    rows += np.bincount(label, minlength=k)
    for start in range(0, len(label), _BATCH):
      batch = _padded(embedding, 0, start), _padded(label, -1, start)
      for i, (head, of_head) in enumerate(zip(heads, weights, strict=True)):
        by_class, five = _hits(head.unit_norm, *of_head, *batch)
        first[i] += by_class
        among_five[i] += five
  n, there = int(rows.sum()), rows > 0
  if not n:
    raise InputError("there are no rows to evaluate on: choose another part.")
  recalls = np.where(there, first / np.maximum(rows, 1), np.nan)
  return [
    Accuracy(
      top1=int(first[i].sum()) / n,
      top5=int(among_five[i]) / n,
      num_examples=n,
      balanced=float(recall[there].mean()),
      recall=tuple(None if math.isnan(r) else r for r in recall.tolist()),
      class_rows=tuple(rows.tolist()),
    )
    for i, recall in enumerate(recalls)
  ]


def _padded(column: np.ndarray, value: int, start: int) -> np.ndarray:
  rows = column[start : start + _BATCH]  # one shape: compiled once
  missing = [(0, _BATCH - len(rows))] + [(0, 0)] * (rows.ndim - 1)
  return np.pad(rows, missing, constant_values=value)


@functools.partial(jax.jit, static_argnames="unit_norm")
def _hits(
  unit_norm: bool, kernel: Array, bias: Array, embedding: Array, label: Array
) -> tuple[Int[Array, " K"], Int[Array, ""]]:
  """How many labels of rows a head has first, by class, and among five."""
  head = LinearHead(kernel=kernel, bias=bias, unit_norm=unit_norm)
  logits = head.logits(embedding.astype(jnp.float32))
  of_label = jnp.take_along_axis(logits, label[:, None], axis=1)
  # Said of the classes behind: NaN is behind nothing, so it is no hit.
  later = jnp.arange(logits.shape[1]) >= label[:, None]
  behind = (logits < of_label) | ((logits == of_label) & later)
  rank = (~behind).sum(axis=1)
  first = (label >= 0) & (rank < 1)
  by_class = jnp.zeros(logits.shape[1], jnp.int32).at[label].add(first)
  return by_class, ((label >= 0) & (rank < _AMONG)).sum()


def private_accuracies(
  sums: PrivateSums,
  rows: Rows,
  heads: Sequence[LinearHead],
  buys: float,
  counted: bool = False,
) -> list[Accuracy]:
  """Top-1 accuracies of H heads on private labels, within [0, 1], with noise.

      clip(√H·(c_h + Z_h)/n, 0, 1),   Z of the noise multiplier of the door

  A row counts for its weight over √H at each head that is right, so that all
  counts are one vector; a unit counts for one, whatever it holds. Where n is a
  mean (`counted`), or units may have many rows, it is a noisy count as well.
  Heads are public, of one shape, their biases alike unless they read norm 1.

  Formal guarantees: Gaussian mechanisms of μ² = `buys` together, on sums of
  `rows_of(data, per_row=True)`: a unit's rows one by one, sharing its weight.
  """
  n, share = float(rows.data.n), 0.0
  if counted or rows.data.has_units:
    share = 1 / (len(heads) + 1)
    counted_units, _ = sums.release(
      "units", rows, unit_count, mu_squared=share * buys
    )
    n = max(1.0, counted_units.item())
  kernels = [np.asarray(head.kernel) for head in heads]
  biases = [np.asarray(head.ranking().bias) for head in heads]
  hits, _ = sums.release(
    "right answers",
    rows,
    correct_predictions,
    mu_squared=(1 - share) * buys,
    public=integer_heads(kernels, biases),
  )
  shares = hits.ravel() * math.sqrt(len(heads)) / n
  return [
    Accuracy(top1=top1, num_examples=max(1, round(n)))
    for top1 in shares.clip(0, 1).tolist()
  ]


def accuracy_interval(accuracy: float, n: int) -> tuple[float, float]:
  """Clopper & Pearson's 95 % interval of a share of n public test rows.

  >>> low, high = accuracy_interval(0.9, 1000)
  >>> round(low, 4), round(high, 4)
  (0.8797, 0.9179)
  """
  import scipy.stats  # half a second

  found = scipy.stats.binomtest(round(accuracy * n), n)
  low, high = found.proportion_ci(0.95, method="exact")
  return float(low), float(high)
