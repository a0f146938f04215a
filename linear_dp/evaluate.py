"""Accuracy of heads: exact on public labels, or with noise on private ones."""

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
from oneshot_dp.linear_dp.private_head import PrivateHead
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.statistics import (
  correct_predictions,
  integer_heads,
  unit_count,
)

_BATCH_ROWS = 1024
_TOP = 5
MAX_CONFUSION_CLASSES = 100
"""No confusion matrix is counted for more: it has K² numbers a head."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracy:
  """How often a head predicts the class of a row.

  Noisy counts give `top1` and about `num_examples` alone.

  Attributes:
    top1: share of rows whose label has the largest logit.
    top5: share of rows whose label is among the five largest logits.
    num_examples: the number of rows.
    balanced: mean of `recall` over the classes that have rows.
    recall: top-1 accuracy of each class; None for a class without rows.
    class_rows: the number of rows of each class.
    confusion: [K, K], how many rows of each class (first index) were answered
      with each class (second); rows with a NaN logit are not among them. None
      of more than `MAX_CONFUSION_CLASSES` classes.
  """

  top1: float
  top5: float | None = None
  num_examples: int
  balanced: float | None = None
  recall: tuple[float | None, ...] | None = None
  class_rows: tuple[int, ...] | None = None
  confusion: tuple[tuple[int, ...], ...] | None = None


def evaluate_heads(
  heads: Sequence[LinearHead | PrivateHead],
  blocks: Iterable[Mapping[str, np.ndarray]],
  on_rows: Callable[[int], object] = lambda rows: None,
) -> list[Accuracy]:
  """Returns the exact accuracy of every head on rows with *public* labels.

  The rows are read once for all heads. Of equal logits the first class wins,
  as by argmax; NaN is never a correct answer.

  >>> eye = np.eye(3, dtype=np.float32)
  >>> head = LinearHead(kernel=eye, bias=np.zeros(3, np.float32))
  >>> rows = {"embedding": eye, "label": np.array([0, 1, 0])}
  >>> (accuracy,) = evaluate_heads([head], [rows])
  >>> round(accuracy.top1, 3), accuracy.top5, accuracy.num_examples
  (0.667, 1.0, 3)

  Args:
    heads: `LinearHead`s or `PrivateHead`s with kernels of one shape [d, K].
    blocks: columns "embedding" [r, d] and "label" [r], read once.
    on_rows: called with the number of rows of each block, for progress.

  Returns:
    The accuracy of each head, in their order.

  Raises:
    InputError: heads of several shapes, no rows, another feature_dim, or a
      label outside [0, K); or an argument is of another kind.
  """
  if isinstance(heads, Iterable):
    heads = list(heads)
  _check_kinds(heads, blocks)
  linear_heads = []
  for head in heads:
    linear_heads.append(head if isinstance(head, LinearHead) else head.head)
  # Heads of one shape share one compiled program, and one pass over the rows.
  shapes = sorted({head.kernel.shape for head in linear_heads})
  if len(shapes) > 1:
    raise InputError(f"heads of shapes {shapes}: score those of one together.")
  if not linear_heads:
    return []
  counts = _HitCounts(linear_heads)
  for block in blocks:
    embedding, label = _columns_of(block)
    _check_block(embedding, label, linear_heads[0])
    on_rows(len(label))
    counts.add(embedding, label)
  if not counts.class_rows.any():
    raise InputError("there are no rows to evaluate on: choose another part.")
  return [counts.accuracy(index) for index in range(len(linear_heads))]


def _check_kinds(heads: Any, blocks: Any) -> None:
  """Raises InputError for one head, or one block, where several belong."""
  are_heads = isinstance(heads, Sequence) and all(
    isinstance(head, LinearHead | PrivateHead) for head in heads
  )
  if not are_heads:
    raise InputError("heads must be a list of LinearHeads or PrivateHeads.")
  if isinstance(blocks, Mapping | str) or not isinstance(blocks, Iterable):
    raise InputError(
      'blocks must be an iterable of dicts with "embedding" and "label".'
    )


def _columns_of(block: Any) -> tuple[Any, Any]:
  """The embeddings and labels of a block; InputError: it has no such arrays."""
  if not isinstance(block, Mapping) or not {"embedding", "label"} <= set(block):
    raise InputError('a block must be a dict with "embedding" and "label".')
  embedding = block["embedding"]
  label = block["label"]
  for array in (embedding, label):
    if not isinstance(array, np.ndarray | jax.Array):
      raise InputError('"embedding" and "label" of a block must be arrays.')
  is_fit = embedding.ndim == 2 and label.shape == embedding.shape[:1]
  if not is_fit or label.dtype.kind not in "iu":
    raise InputError(
      f'"embedding" {list(embedding.shape)} must be [r, d], and "label"'
      f" {list(label.shape)} of {label.dtype} integers [r]."
    )
  return embedding, label


def _check_block(
  embedding: np.ndarray, label: np.ndarray, head: LinearHead
) -> None:
  if embedding.shape[-1] != head.feature_dim:
    raise InputError(
      f"The rows have feature_dim={embedding.shape[-1]}, the head"
      f" {head.feature_dim}: they come from different backbones."
    )
  if ((label < 0) | (label >= head.num_classes)).any():
    raise InputError(
      f"a label is outside 0 to {head.num_classes - 1}, the head's classes."
    )


class _HitCounts:
  """Counts correct answers of several heads, block by block."""

  def __init__(self, heads: Sequence[LinearHead]):
    num_classes = heads[0].num_classes
    self.heads = heads
    self.class_rows = np.zeros(num_classes, np.int64)
    self._weights = jax.device_put(
      [(head.kernel, head.ranking().bias) for head in heads]
    )
    self._first = np.zeros((len(heads), num_classes), np.int64)
    self._among_top = np.zeros(len(heads), np.int64)
    self._confusion: np.ndarray | None = None
    if num_classes <= MAX_CONFUSION_CLASSES:
      shape = (len(heads), num_classes, num_classes)
      self._confusion = np.zeros(shape, np.int64)

  def add(self, embedding: np.ndarray, label: np.ndarray) -> None:
    """Counts the correct answers of each head on a block of rows.

    Args:
      embedding: [r, d], of any number of rows.
      label: integers [r] in [0, K), which `_check_block` has made sure of.
    """
    self.class_rows += np.bincount(label, minlength=len(self.class_rows))
    # Batches of one shape, so that one program is compiled; the label -1 marks
    # the rows that only fill up the last batch.
    for start in range(0, len(label), _BATCH_ROWS):
      batch = _padded_batch(embedding, start, fill=0)
      batch_label = _padded_batch(label, start, fill=-1)
      for index, head in enumerate(self.heads):
        kernel, bias = self._weights[index]
        first, among_top, answer = _hits(
          head.unit_norm, kernel, bias, batch, batch_label
        )
        self._first[index] += first
        self._among_top[index] += among_top
        if self._confusion is not None:
          self._count_answers(self._confusion[index], batch_label, answer)

  def _count_answers(
    self, confusion: np.ndarray, label: np.ndarray, answer: Array
  ) -> None:
    """Adds rows that have a label and an answer to a confusion matrix."""
    answers = np.asarray(answer)
    is_counted = (label >= 0) & (answers < len(confusion))
    # A pair of classes is counted as one number: it takes less than half of the
    # time of adding pair by pair.
    pairs = label[is_counted] * len(confusion) + answers[is_counted]
    counts = np.bincount(pairs, minlength=confusion.size)
    confusion += counts.reshape(confusion.shape)

  def accuracy(self, index: int) -> Accuracy:
    """Returns the accuracy of one head on all rows so far."""
    # A class without rows has no recall, and does not count in the mean of
    # them: it would be 0 by no fault of the head.
    num_rows = int(self.class_rows.sum())
    recall: list[float | None] = []
    for hits, rows in zip(self._first[index], self.class_rows, strict=True):
      recall.append(float(hits / rows) if rows else None)
    present = [share for share in recall if share is not None]
    confusion = None
    if self._confusion is not None:
      confusion = tuple(tuple(row) for row in self._confusion[index].tolist())
    return Accuracy(
      top1=int(self._first[index].sum()) / num_rows,
      top5=int(self._among_top[index]) / num_rows,
      num_examples=num_rows,
      balanced=float(np.mean(present)),
      recall=tuple(recall),
      class_rows=tuple(self.class_rows.tolist()),
      confusion=confusion,
    )


def _padded_batch(column: np.ndarray, start: int, *, fill: int) -> np.ndarray:
  rows = column[start : start + _BATCH_ROWS]
  missing = [(0, _BATCH_ROWS - len(rows))] + [(0, 0)] * (rows.ndim - 1)
  return np.pad(rows, missing, constant_values=fill)


@functools.partial(jax.jit, static_argnames="unit_norm")
def _hits(
  unit_norm: bool, kernel: Array, bias: Array, embedding: Array, label: Array
) -> tuple[Int[Array, " K"], Int[Array, ""], Int[Array, " rows"]]:
  """Counts rows whose label has the largest logit, by class, and among five.

  Returns also the class that each row is answered with: the first of those with
  the largest logit, or K if a logit is NaN.
  """
  head = LinearHead(kernel=kernel, bias=bias, unit_norm=unit_norm)
  logits = head.logits(embedding.astype(jnp.float32))
  # Padding has the label −1, which reads the last class; `is_row` drops it
  # below.
  label_logit = jnp.take_along_axis(logits, label[:, None], axis=1)
  # The rank of a label is the number of classes that are not behind it. NaN
  # compares as False, is behind nothing, and so never makes a correct answer.
  classes = jnp.arange(logits.shape[1])
  is_later = classes >= label[:, None]
  is_tie = (logits == label_logit) & is_later
  is_behind = (logits < label_logit) | is_tie
  rank = (~is_behind).sum(axis=1)
  is_row = label >= 0
  is_first = is_row & (rank < 1)
  by_class = jnp.zeros(logits.shape[1], jnp.int32).at[label].add(is_first)
  # A row with NaN has NaN as its maximum, which no logit is equal to. On a CPU
  # this takes a fraction of `argmax`.
  is_largest = logits == logits.max(axis=1, keepdims=True)
  answer = jnp.where(is_largest, classes, len(classes)).min(axis=1)
  return by_class, (is_row & (rank < _TOP)).sum(), answer


def private_accuracies(
  sums: PrivateSums,
  rows: Rows,
  heads: Sequence[LinearHead],
  *,
  mu_squared: float,
  count_units: bool = False,
) -> list[Accuracy]:
  r"""Returns noisy top-1 accuracies of H heads on *private* labels.

      clip(√H·(c_h + Z_h)/n, 0, 1)

  A row adds its weight over √H to the count c_h of each head that names its
  class, so that all H counts are one vector, released once. A unit counts for
  one, whatever it holds.

  Formal guarantees:
    Gaussian mechanisms that cost `mu_squared` together, on sums of the rows of
    `rows_of(data, per_row=True)`: a unit's rows come one by one and share its
    weight.

  Args:
    sums: the mechanism, with at least this budget left.
    rows: of `rows_of(data, per_row=True)`.
    heads: public heads of one shape, whose biases are alike unless they read
      rows at norm 1.
    mu_squared: what the accuracies cost together.
    count_units: whether n is only a mean (a part of a cache), so that the
      number of units is a noisy count as well. Always so for units of many
      rows.

  Returns:
    For each head `top1` in [0, 1], and the number of examples or units, which
    is about right where it is a noisy count.
  """
  # What the counts are divided by. Dividing by a private number would give it
  # away, so where n is not public it is a noisy count, paid from the same
  # budget.
  n = float(rows.data.n)
  count_share = 0.0
  if count_units or rows.data.has_units:
    # The number of units is one count beside the H counts of correct answers.
    count_share = 1 / (len(heads) + 1)
    noisy_n, _ = sums.release(
      "units", rows, unit_count, mu_squared=count_share * mu_squared
    )
    n = max(1.0, noisy_n.item())
  # Released heads are public, so they may be arguments of a private statistic.
  kernels = [np.asarray(head.kernel) for head in heads]
  biases = [np.asarray(head.ranking().bias) for head in heads]
  public = integer_heads(kernels, biases)
  hits, _ = sums.release(
    "right answers",
    rows,
    correct_predictions,
    mu_squared=(1 - count_share) * mu_squared,
    public=public,
  )
  # The counts were shares of 1/√H, see `correct_predictions`. Noise may take a
  # share out of [0, 1]; to clip it is post-processing.
  shares = hits.ravel() * math.sqrt(len(heads)) / n
  num_examples = max(1, round(n))
  accuracies = []
  for top1 in shares.clip(0, 1).tolist():
    accuracies.append(Accuracy(top1=top1, num_examples=num_examples))
  return accuracies


def accuracy_interval(accuracy: float, n: int) -> tuple[float, float]:
  """Returns the 95 % interval of an accuracy on n public test rows.

  Clopper and Pearson's exact interval for a binomial share: over new test rows
  of the same kind it covers the true accuracy at least 95 times in 100.

  >>> low, high = accuracy_interval(0.9, 1000)
  >>> round(low, 4), round(high, 4)
  (0.8797, 0.9179)

  Args:
    accuracy: the share of correct answers, in [0, 1]; the number of them is
      rounded to a whole one, as a mean of several heads may fall between two.
    n: the number of test rows, 1 at least.

  Returns:
    The ends of the interval, within [0, 1].

  Source: Clopper & Pearson, "The use of confidence or fiducial limits
  illustrated in the case of the binomial" (Biometrika 1934).
  """
  import scipy.stats  # Its import takes half a second.

  test = scipy.stats.binomtest(round(accuracy * n), n)
  low, high = test.proportion_ci(0.95, method="exact")
  return float(low), float(high)
