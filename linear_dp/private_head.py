"""A private head with what is to be said of it."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.configs.head_config import called
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.accounting.sections import (
  composition_section,
  privacy_section,
)
from oneshot_dp.linear_dp.evaluate import Accuracy, count_hits
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.rows.arrays import Numbers
from oneshot_dp.linear_dp.rows.block import RowBlock
from oneshot_dp.linear_dp.trainer import TrainedHead


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrivateHead:
  """A classifier that is safe to publish as its receipt says.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> embeddings = np.repeat(np.eye(2, dtype=np.float32), 500, axis=0)
  >>> labels = np.repeat([0, 1], 500)
  >>> head = oneshot_dp.train_head(
  ...   embeddings, labels, num_classes=2, epsilon=4.0, delta=1e-6
  ... )
  >>> head
  PrivateHead(auto, feature_dim=2, num_classes=2, epsilon=4, delta=1e-06)
  >>> head.predict(np.array([[3.0, 0.0], [0.0, 0.5]]))
  array([0, 1])
  >>> receipt = head.receipt()
  >>> receipt["private"], receipt["privacy"]["noise_source"]
  (True, 'os.urandom')

  Attributes:
    trained: the head, how it was made, and its settings.
    num_examples: n of the training rows, public.
    class_names: the names of the K classes, public.
    num_classes_source: where K comes from; of labels, which are private, the
      guarantee holds only if K is public anyway.
    privacy_unit: "example", or "unit" where rows had unit_ids.
    is_charged: whether the caller had it charged to something.
  """

  trained: TrainedHead
  num_examples: int
  class_names: tuple[str, ...]
  num_classes_source: Literal[
    "class_names", "flag", "labels (treated as public)"
  ] = "flag"
  privacy_unit: str = EXAMPLE_UNIT
  is_charged: bool = False

  @property
  def head(self) -> LinearHead:
    """The weights: kernel [d, K] and bias [K], float32."""
    return self.trained.head

  @property
  def statement(self) -> PrivacyStatement:
    """The guarantee of this head alone."""
    return self.trained.statement

  @property
  def plan(self) -> ReleasePlan:
    """The heads that were released together, which compose."""
    return self.trained.plan

  def __repr__(self) -> str:
    d, num_classes = self.head.kernel.shape
    return (
      f"PrivateHead({called(self.trained.settings['head'])}, feature_dim={d},"
      f" num_classes={num_classes}, epsilon={self.statement.epsilon:g},"
      f" delta={self.statement.delta:g}"
      f"{'' if self.statement.is_private else ', NOT PRIVATE'})"
    )

  def logits(self, embeddings: Numbers) -> Float[np.ndarray, "n K"]:
    """Scores of each class, good for ranking, for embeddings as it learnt from.

    The largest bias is taken off: a common -10 would swallow small differences.

    InputError: another d; a row that is not finite, or too long for the head
    (the message names the row, never its numbers).
    """
    array = np.asarray(embeddings)
    if array.ndim != 2 or array.shape[1] != self.head.feature_dim:
      raise InputError(
        f"embeddings have shape {array.shape}: the head takes"
        f" [n, {self.head.feature_dim}]."
      )
    bias = np.asarray(self.head.bias)
    ranking = dataclasses.replace(self.head, bias=bias - bias.max())
    with np.errstate(over="ignore"):  # its logits are not finite either
      features = array.astype(np.float32)
    logits = np.asarray(ranking.logits(jnp.asarray(features)))
    sound = np.isfinite(logits).all(axis=1)
    if not sound.all():
      raise InputError(
        f"embeddings[{sound.argmin()}] is not finite, or too long for float32:"
        " mend the row, or leave it out."
      )
    return logits

  def decision_function(self, embeddings: Numbers) -> Float[np.ndarray, "n K"]:
    """The logits, by scikit-learn's name; a column per class, also for two."""
    return self.logits(embeddings)

  def predict_proba(self, embeddings: Numbers) -> Float[np.ndarray, "n K"]:
    """The softmax of the logits, float64.

    *Not calibrated*: heads of one step have logits on no scale, and even others
    are not fitted to be right as often as they say. `oneshot-dp predict
    --calibration-cache` fits a temperature to public labels.
    """
    return scipy.special.softmax(self.logits(embeddings).astype(float), axis=1)

  def score(self, embeddings: Numbers, labels: Numbers) -> float:
    """The share of right classes; as private as the rows that it is of."""
    return float((self.predict(embeddings) == np.asarray(labels)).mean())

  def predict(self, embeddings: Numbers) -> Int64[np.ndarray, " n"]:
    """The class with the largest logit, the first of those that tie."""
    return self.logits(embeddings).argmax(axis=1)

  def receipt(self) -> dict[str, Any]:
    """What the head guarantees and all that it follows from, as JSON.

    The fields are those of the receipt.json of `oneshot-dp train`, as far as
    arrays can know them; `private` is False where the noise came from a seed.
    """
    statement, plan = self.statement, self.plan
    d, num_classes = self.head.kernel.shape
    return {
      "private": statement.is_private,
      "privacy": privacy_section(
        statement, privacy_unit=self.privacy_unit, sampling=plan.sampling
      ),
      "composition": {**composition_section(plan), "charged": self.is_charged},
      "data": {
        "num_examples": self.num_examples,
        "feature_dim": d,
        "num_classes": num_classes,
        "class_names": list(self.class_names),
        "num_classes_source": self.num_classes_source,
      },
      "training": dict(self.trained.settings),
    }


def evaluate_heads(
  heads: Sequence[LinearHead | PrivateHead],
  blocks: Iterable[RowBlock],
  *,
  on_rows: Callable[[int], object] = lambda rows: None,
) -> list[Accuracy]:
  """The exact accuracies on rows whose labels are public, head by head.

  >>> import numpy as np
  >>> from oneshot_dp import ArrayRows, LinearHead
  >>> eye = np.eye(3, dtype=np.float32)
  >>> head = LinearHead(kernel=eye, bias=np.zeros(3, np.float32))
  >>> rows = ArrayRows.of(eye, np.array([0, 1, 0]), num_classes=3)
  >>> (accuracy,) = evaluate_heads([head], [rows])
  >>> round(accuracy.top1, 3), accuracy.top5, accuracy.num_examples
  (0.667, 1.0, 3)

  Args:
    heads: all of one shape.
    blocks: the labelled rows, in any block size.
    on_rows: called with the number of rows of each block read (progress).

  Returns:
    An accuracy for each head, in their order.

  InputError: see `evaluate.count_hits`.
  """
  if not heads:
    return []
  weights = [h if isinstance(h, LinearHead) else h.head for h in heads]
  hits = count_hits(weights, blocks, on_rows=on_rows)
  return hits.accuracies_of_public_labels()
