"""Accuracy of many heads in one pass over a cache: of rows, and of classes."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.rows.batches import padded_batches
from oneshot_dp.linear_dp.rows.block import RowBlock, check_labels
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.whole_units import UnitSizes, places_of

_BATCH_ROWS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracy:
  """Shares of n rows whose label is the best, or among the best five.

  Attributes:
    top1, top5, num_examples: of all rows.
    balanced: the mean of `recall` over classes that have rows; None where only
      noisy counts of all rows were paid for, or a row may have several labels.
    recall: top-1 of the rows of each class; None of a class without rows.
  """

  top1: float
  top5: float
  num_examples: int
  balanced: float | None = None
  recall: tuple[float | None, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretHits(Secret):
  """Exact counts of right answers on labels that may be private.

  Either `noisy_counts.release_accuracies` lets accuracies out, or whoever calls
  `accuracies_of_public_labels` says by that name that there is no secret.

  Attributes:
    num_examples: rows counted; private where n is what they are on average.
      Of units, how many there are, in `steps`, as all counts are.
    secret_hits: rows whose label is the first answer, and among the first five.
    secret_class_hits: the first of these by class; None where rows have lists
      of labels.
    secret_class_rows: rows of each class.
    steps: what a privacy unit counts for: 1, or B, divided among its rows.
  """

  public = ("num_classes",)

  num_examples: int
  num_classes: int
  secret_hits: Int64[np.ndarray, "2 heads"]
  secret_class_hits: Int64[np.ndarray, "heads K"] | None = None
  secret_class_rows: Int64[np.ndarray, " K"] | None = None
  steps: int = 1

  def accuracies_of_public_labels(self) -> list[Accuracy]:
    """The exact accuracies, one per head."""
    n = self.num_examples
    found = [
      Accuracy(top1=top1 / n, top5=top5 / n, num_examples=n)
      for top1, top5 in self.secret_hits.T.tolist()
    ]
    hits, rows = self.secret_class_hits, self.secret_class_rows
    if hits is None or rows is None:
      return found
    there = rows > 0
    recalls = np.where(there, hits / np.maximum(rows, 1), np.nan)
    return [
      dataclasses.replace(
        accuracy,
        balanced=float(recall[there].mean()),
        recall=tuple(None if math.isnan(r) else r for r in recall.tolist()),
      )
      for accuracy, recall in zip(found, recalls, strict=True)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LabelLists:
  """A list of labels for each of consecutive ids: several classes, or none.

  They are in ascending order, each once, then −1.
  """

  labels: Int32[np.ndarray, "ids longest"]
  first_id: int

  def of(
    self, example_id: Int64[np.ndarray, " rows"]
  ) -> Int32[np.ndarray, "rows longest"]:
    """The lists of some examples; a row of −1 where a list is empty."""
    index = example_id - self.first_id
    outside = (index < 0) | (index >= len(self.labels))
    if outside.any():
      last = self.first_id + len(self.labels) - 1
      raise InputError(
        f"example_id={example_id[outside][0]} has no list of labels: there are"
        f" {len(self.labels):,} lists, for the ids {self.first_id} to {last}."
      )
    return self.labels[index]


def count_hits(
  heads: Sequence[LinearHead],
  blocks: Iterable[RowBlock],
  *,
  lists: LabelLists | None = None,
  sizes: UnitSizes | None = None,
  on_rows: Callable[[int], object] = lambda rows: None,
) -> SecretHits:
  """Reads the cache once and counts the right answers of every head.

  The rank of a label is the number of classes with a larger logit, or an equal
  one and a smaller index, so top-1 agrees with argmax. With `lists`, of labels
  in [0, K), the label of a row is whichever of its list ranks best; a row of an
  empty list is left out. With `sizes`, each of the k rows of a unit counts for
  ⌊B/k⌋ steps, so that a unit counts for at most B, whatever it holds. `on_rows`
  is told the rows of each block (progress).

  Raises:
    InputError: heads of several shapes, no rows with a label, another
      feature_dim, a label of the rows outside [0, K), or a row without a list.
  """
  shapes = {head.kernel.shape for head in heads}
  if len(shapes) > 1:
    raise InputError(
      f"heads of several shapes, {sorted(shapes)}: score those of one together."
    )
  weights = jax.device_put([(head.kernel, head.bias) for head in heads])
  k = heads[0].num_classes
  hits = np.zeros((2, len(heads)), np.int64)
  class_hits = np.zeros((len(heads), k), np.int64)
  class_rows = np.zeros(k, np.int64)
  rows = 0
  labelled = _labelled(blocks, heads[0], lists, sizes, on_rows)
  for embedding, labels, weight in padded_batches(labelled, _BATCH_ROWS):
    is_row = (labels >= 0).any(axis=1)
    rows += int(weight[is_row].sum(dtype=np.int64))
    class_rows += np.bincount(labels[is_row, 0], minlength=k)
    batch = jax.device_put((embedding, labels, weight))
    # All are on their way before the first is waited for.
    of_heads = [
      _hits(head.unit_norm, *of_head, *batch)
      for head, of_head in zip(heads, weights, strict=True)
    ]
    hits += np.stack([first for first, _ in of_heads], axis=1)
    class_hits += np.stack([by_class for _, by_class in of_heads])
  if not rows:
    raise InputError(
      "The evaluation cache has no rows"
      + (" with a label in their lists." if lists else ".")
    )
  has_classes = lists is None and sizes is None
  return SecretHits(
    num_examples=rows,
    num_classes=k,
    secret_hits=hits,
    secret_class_hits=class_hits if has_classes else None,
    secret_class_rows=class_rows if has_classes else None,
    steps=1 if sizes is None else GRID_RADIUS,
  )


def _labelled(
  blocks: Iterable[RowBlock],
  head: LinearHead,
  lists: LabelLists | None,
  sizes: UnitSizes | None,
  on_rows: Callable[[int], object],
) -> Iterator[tuple[np.ndarray, ...]]:
  """Embeddings, the labels to count by, one or a list for each, and weights."""
  for block in blocks:
    if block.embedding.shape[1] != head.feature_dim:
      raise InputError(
        f"The cache has feature_dim={block.embedding.shape[1]}, the head"
        f" {head.feature_dim}: they come from different backbones."
      )
    check_labels(block, head.num_classes)
    on_rows(len(block.label))
    labels = lists.of(block.example_id) if lists else block.label[:, None]
    weight = np.ones(len(labels), np.int32)
    if sizes is not None:
      weight *= GRID_RADIUS
      weight //= sizes.secret_rows[places_of(block, sizes)].astype(np.int32)
    yield block.embedding, labels, weight


def logits_of(
  head: LinearHead, rows: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[tuple[Float32[np.ndarray, "batch K"], np.ndarray]]:
  """The logits that `count_hits` ranks by, less the largest bias.

  Numbers ≥ 0 beside the embeddings [rows, d] come back beside their logits.
  InputError: logits that are not finite.
  """
  weights = jax.device_put((head.kernel, head.bias))
  for embedding, numbers in padded_batches(rows, _BATCH_ROWS):
    real = numbers >= 0
    logits = np.asarray(_logits(head.unit_norm, *weights, embedding))[real]
    if not np.isfinite(logits).all():
      raise InputError("the head's logits of these rows are not finite.")
    yield logits, numbers[real]


@functools.partial(jax.jit, static_argnames="unit_norm")
def _logits(
  unit_norm: bool,
  kernel: Float[Array, "d K"],
  bias: Float[Array, " K"],
  embedding: Float[Array, "rows d"],
) -> Float[Array, "rows K"]:
  # Relative to the largest: a common −10 would swallow the small differences
  # that a small learning rate leaves, in float32.
  head = LinearHead(kernel=kernel, bias=bias - bias.max(), unit_norm=unit_norm)
  return head.logits(embedding.astype(jnp.float32))


@functools.partial(jax.jit, static_argnames="unit_norm")
def _hits(
  unit_norm: bool,
  kernel: Float[Array, "d K"],
  bias: Float[Array, " K"],
  embedding: Float[Array, "rows d"],
  labels: Int[Array, "rows longest"],
  weight: Int32[Array, " rows"],
) -> tuple[Int[Array, " 2"], Int[Array, " K"]]:
  """Rows that a head has in its first, and in its first five; by class."""
  logits = _logits(unit_norm, kernel, bias, embedding)
  is_label = labels >= 0
  of_labels = jnp.take_along_axis(logits, labels, axis=1)
  of_labels = jnp.where(is_label, of_labels, -jnp.inf)
  # The first of equal ones, which is the smallest: lists are ascending.
  best = of_labels.argmax(axis=1, keepdims=True)
  of_label = jnp.take_along_axis(of_labels, best, axis=1)
  label = jnp.take_along_axis(labels, best, axis=1)
  # Said of the classes behind: NaN is behind nothing, so it is no hit.
  class_index = jnp.arange(logits.shape[1])
  behind = (logits < of_label) | ((logits == of_label) & (class_index >= label))
  rank = (~behind).sum(axis=1)
  real_row = is_label.any(axis=1)
  first = weight * (real_row & (rank < 1))
  by_class = jnp.zeros(logits.shape[1], int).at[label[:, 0]].add(first)
  among_five = weight * (real_row & (rank < 5))
  # 1,024 rows of at most 2²⁰ fit in int32.
  return jnp.stack([first.sum(), among_five.sum()]), by_class
