"""What heads answer on evaluation rows whose labels are public."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int64

from oneshot_dp.extract.cache.block import Block
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.head import LinearHead

ClippedRows = Callable[[Block], Float[np.ndarray, "rows D"]]
"""What a mechanism would add to its class sums for each row."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicAnswers:
  """The answers of several heads, and sums of the rows they answered on.

  The sums are of rows as a mechanism would clip them, class by class; None
  where none was asked for.
  """

  label: Int64[np.ndarray, " n"]
  answer: Int64[np.ndarray, "heads n"]
  class_sums: Float[np.ndarray, "K D"] | None

  def rows_of_classes(self, num_classes: int) -> Int64[np.ndarray, " K"]:
    """How many rows each class has."""
    return np.bincount(self.label, minlength=num_classes)

  def class_accuracy(self, num_classes: int) -> Float[np.ndarray, "heads K"]:
    """Share of a class's rows that each head names right; NaN of no rows."""
    rows = self.rows_of_classes(num_classes)
    hits = np.stack(
      [
        np.bincount(self.label[answer == self.label], minlength=num_classes)
        for answer in self.answer
      ]
    )
    return np.where(rows > 0, hits / np.maximum(rows, 1), np.nan)

  def confusion(self, num_classes: int) -> Float[np.ndarray, "K K"]:
    """Share of a class's rows (line) that get an answer, mean over heads."""
    pairs = (self.label * num_classes + self.answer).ravel()
    counts = np.bincount(pairs, minlength=num_classes**2)
    square = counts.reshape(num_classes, num_classes) / len(self.answer)
    rows = self.rows_of_classes(num_classes)
    return square / np.maximum(rows, 1)[:, None]

  def most_confused(
    self, num_classes: int, most: int
  ) -> list[tuple[int, int, float]]:
    """Label, wrong answer, and the mean share of the label's rows; most first.

    Needs no matrix, so that there may be any number of classes.
    """
    wrong = self.answer != self.label
    labels = np.broadcast_to(self.label, self.answer.shape)[wrong]
    pairs, counts = np.unique(
      labels * num_classes + self.answer[wrong], return_counts=True
    )
    rows = self.rows_of_classes(num_classes)[pairs // num_classes]
    shares = counts / (rows * len(self.answer))
    order = np.argsort(-shares, kind="stable")[:most]
    return [
      (int(p // num_classes), int(p % num_classes), float(share))
      for p, share in zip(pairs[order], shares[order], strict=True)
    ]


def ask(
  heads: Sequence[LinearHead],
  rows: FeatureCache,
  clipped: ClippedRows | None = None,
) -> PublicAnswers:
  """One pass over evaluation rows; only where their labels are public.

  Heads are of one shape; rows are also summed as `clipped` makes them, class by
  class.
  """
  labels, answers = [], []
  sums: np.ndarray | None = None
  for block in rows.blocks():
    labels.append(block.label.astype(np.int64))
    answers.append(np.stack([_answers(head, block) for head in heads]))
    if clipped is not None:
      vectors = clipped(block)
      if sums is None:
        sums = np.zeros((rows.info.num_classes, vectors.shape[1]))
      np.add.at(sums, block.label, vectors)
  return PublicAnswers(
    label=np.concatenate(labels),
    answer=np.concatenate(answers, axis=1),
    class_sums=sums,
  )


def _answers(head: LinearHead, block: Block) -> np.ndarray:
  """The class of the largest logit, the first of equal ones."""
  features = block.embedding.astype(np.float32)
  if head.unit_norm:
    norm = block.embedding_norm[:, None]
    features = features / np.where(norm > 0, norm, 1)
  bias = np.asarray(head.bias)
  # As in `linear_dp.evaluate`: a common −10 would swallow small differences.
  logits = features @ np.asarray(head.kernel) + (bias - bias.max())
  return logits.argmax(axis=1).astype(np.int64)
