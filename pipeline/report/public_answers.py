"""What heads answer on evaluation rows whose labels are public."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int64
from scipy import sparse

from oneshot_dp.extract.cache.block import Block
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.evaluate import logits_of
from oneshot_dp.linear_dp.head import LinearHead

ClippedRows = Callable[[Block], Float[np.ndarray, "rows D"]]
"""What a mechanism would add to its class sums for each row."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicAnswers:
  """The answers of several heads; rows summed per class, where asked for."""

  num_classes: int
  label: Int64[np.ndarray, " n"]
  answer: Int64[np.ndarray, "heads n"]
  class_sums: Float[np.ndarray, "K D"] | None

  @functools.cached_property
  def rows_of_classes(self) -> Int64[np.ndarray, " K"]:
    """How many rows each class has."""
    return np.bincount(self.label, minlength=self.num_classes)

  def class_accuracy(self) -> Float[np.ndarray, "heads K"]:
    """Share of a class's rows that each head names right; NaN of no rows."""
    rows = self.rows_of_classes
    hits = [
      np.bincount(self.label[answer == self.label], minlength=self.num_classes)
      for answer in self.answer
    ]
    return np.where(rows > 0, hits / np.maximum(rows, 1), np.nan)

  @functools.cached_property
  def confusion(self) -> sparse.csr_array:
    """Share of a class's rows (line) that get an answer; sparse [K, K].

    The mean over heads.
    """
    labels = np.broadcast_to(self.label, self.answer.shape).ravel()
    pairs = (np.ones(labels.size), (labels, self.answer.ravel()))
    shares = sparse.csr_array(pairs, shape=2 * (self.num_classes,))
    rows = np.repeat(self.rows_of_classes, np.diff(shares.indptr))
    shares.data /= rows * len(self.answer)
    return shares

  def most_confused(self, most: int) -> list[tuple[int, int, float]]:
    """Label, wrong answer, and the share of the label's rows; most first."""
    pairs = self.confusion.tocoo()
    label, answer = (at.tolist() for at in pairs.coords)
    found = zip(label, answer, pairs.data.tolist(), strict=True)
    wrong = (each for each in found if each[0] != each[1])
    return sorted(wrong, key=lambda each: -each[2])[:most]


def ask(
  heads: Sequence[LinearHead],
  rows: FeatureCache,
  clipped: ClippedRows | None = None,
) -> PublicAnswers:
  """One pass over evaluation rows; only where their labels are public.

  Rows are also summed as `clipped` makes them, class by class.
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
    num_classes=rows.info.num_classes,
    label=np.concatenate(labels),
    answer=np.concatenate(answers, axis=1),
    class_sums=sums,
  )


def _answers(head: LinearHead, block: Block) -> np.ndarray:
  """The class of the largest logit, the first of equal ones."""
  parts = logits_of(head, [(block.embedding, block.label)])
  best = [logits.argmax(axis=1) for logits, _ in parts]
  return np.concatenate(best).astype(np.int64)
