r"""A logistic probe without privacy, to compare private heads with.

Multinomial logistic regression on standardised rows z = (x − mean)/sd,

    min  (1/n)·Σ_i −log softmax(Wᵀz_i + b)_{y_i} + (λ/2)·‖W‖²,   λ = 1/n,

by L-BFGS; W and b are then turned into a head for rows as they are. Mean, sd, W
and b are exact statistics of the private rows: NOT PRIVATE.

Source: Liu & Nocedal, "On the limited memory BFGS method", 1989. λ is what
scikit-learn's LogisticRegression has at C = 1.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jaxtyping import Array, Float32, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.rows.batches import padded_batches
from oneshot_dp.linear_dp.rows.block import checked
from oneshot_dp.linear_dp.statistics.step_rows import RESIDENT_BYTES
from oneshot_dp.linear_dp.trainer import (
  UNCLIPPED,
  BaselineTrainer,
  Mechanism,
  NoBar,
  Progress,
  TrainedHead,
  TrainingRows,
)

MAX_STEPS = 300
_BATCH_ROWS = 8192
_CONSTANT = 1e-6
"""A feature that spreads less than this part of its size is left out."""

Batch = tuple[Array, Array]
"""Embeddings as stored [rows, d], labels [rows], −1 where it is padding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logistic(Mechanism):
  """The logistic probe, which no noise protects: NOT PRIVATE."""

  KIND = "logistic"
  is_noisy = False
  num_examples: int
  feature_dim: int
  num_classes: int

  @property
  def l2_penalty(self) -> float:
    """λ."""
    return 1 / self.num_examples

  def as_json(self) -> dict[str, Any]:
    return {
      "kind": self.KIND,
      "name": "none: multinomial logistic regression on the rows themselves",
      **dataclasses.asdict(self),
      **self.training(),
      "rows_per_unit": 1,
      "clipped": UNCLIPPED,
    }

  def training(self) -> dict[str, Any]:
    return {"head": self.KIND, "l2_penalty": self.l2_penalty}

  def in_words(self, training: Mapping[str, Any]) -> str:
    return "logistic regression on standardised embeddings, without privacy"


class LogisticTrainer(BaselineTrainer):
  """All that it makes is NOT PRIVATE."""

  def __init__(self, rows: TrainingRows, progress: Progress = NoBar):
    self.facts = {"rows_per_unit": 1, "clipped": UNCLIPPED}
    self._rows = rows
    self._progress = progress

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    rows = self._rows
    mechanism = Logistic(
      num_examples=rows.num_examples,
      feature_dim=rows.feature_dim,
      num_classes=rows.num_classes,
    )
    with self._progress("logistic probe", "pass", None) as bar:
      head = fit_logistic(rows, mechanism.l2_penalty, on_step=bar.update)
    return TrainedHead(
      head=head,
      statement=PrivacyStatement.without_privacy(
        plan.delta, plan.neighboring_relation
      ),
      mechanism=mechanism,
      plan=plan,
      settings=mechanism.training(),
      draw=0,
    )


def fit_logistic(
  rows: TrainingRows,
  penalty: float,
  *,
  on_step: Callable[[], object] = lambda: None,
  resident_bytes: int = RESIDENT_BYTES,
) -> LinearHead:
  """Fits the probe. NOT PRIVATE.

  λ is `penalty`. Rows are kept if they take no more than `resident_bytes`;
  otherwise each pass reads them again. `on_step` is called after each.

  InputError: damaged rows.
  """
  batches = _resident(lambda: _batches(rows), resident_bytes)
  d, num_classes, n = rows.feature_dim, rows.num_classes, rows.counted
  mean, scale = _mean_and_scale(batches, n)

  def objective(
    parameters: Float64[np.ndarray, " p"],
  ) -> tuple[float, Float64[np.ndarray, " p"]]:
    kernel, bias = parameters[: d * num_classes], parameters[d * num_classes :]
    constants = [
      jnp.asarray(part, jnp.float32)
      for part in (kernel.reshape(d, num_classes), bias, mean, scale)
    ]
    total, gradient = 0.0, np.zeros_like(parameters)
    for batch in batches():
      loss, parts = _loss_and_gradient(*constants, *batch)
      total += float(loss)
      gradient += np.concatenate([np.ravel(part) for part in parts])
    gradient /= n
    gradient[: kernel.size] += penalty * kernel
    on_step()
    return total / n + penalty / 2 * float(np.vdot(kernel, kernel)), gradient

  found = scipy.optimize.minimize(
    objective,
    np.zeros((d + 1) * num_classes),
    jac=True,
    method="L-BFGS-B",
    options={"maxiter": MAX_STEPS, "ftol": 1e-8, "gtol": 1e-6},
  )
  if not np.isfinite(found.fun):
    raise InputError(
      "The cache has an embedding that is not finite: run `oneshot-dp verify`"
      " on it."
    )
  kernel, bias = found.x[: d * num_classes], found.x[d * num_classes :]
  kernel = kernel.reshape(d, num_classes) * scale[:, None]
  return LinearHead(
    kernel=kernel.astype(np.float32),
    bias=(bias - mean @ kernel).astype(np.float32),
  )


def _batches(rows: TrainingRows) -> Iterator[Batch]:
  blocks = checked(
    rows.blocks(),
    feature_dim=rows.feature_dim,
    num_classes=rows.num_classes,
    num_examples=rows.counted,
  )
  pairs = ((block.embedding, block.label) for block in blocks)
  for embedding, label in padded_batches(pairs, _BATCH_ROWS):
    yield jnp.asarray(embedding), jnp.asarray(label)


def _resident(
  batches: Callable[[], Iterator[Batch]], most: int
) -> Callable[[], Iterator[Batch]]:
  """Passes over memory, where the rows take no more bytes than `most`."""
  kept, size = [], 0
  for batch in batches():
    kept.append(batch)
    size += sum(column.nbytes for column in batch)
    if size > most:
      return batches
  return lambda: iter(kept)


def _mean_and_scale(
  batches: Callable[[], Iterator[Batch]], num_examples: int
) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, " d"]]:
  """The mean, and 1/sd; 0 for a constant."""

  def real() -> Iterator[Float64[np.ndarray, "rows d"]]:
    """Embeddings without the padding, on the host."""
    for embedding, label in batches():
      yield np.asarray(embedding).astype(np.float64)[np.asarray(label) >= 0]

  mean = np.asarray(sum(x.sum(axis=0) for x in real())) / num_examples
  squares = sum(np.square(x - mean).sum(axis=0) for x in real())
  sd = np.sqrt(np.asarray(squares) / num_examples)
  varies = sd > _CONSTANT * np.abs(mean)
  return mean, np.divide(1, sd, out=np.zeros_like(sd), where=varies)


@jax.jit
def _loss_and_gradient(
  kernel: Float32[Array, "d K"],
  bias: Float32[Array, " K"],
  mean: Float32[Array, " d"],
  scale: Float32[Array, " d"],
  embedding: Array,
  label: Array,
) -> tuple[Array, tuple[Array, Array]]:
  """The loss over a batch, summed, and its gradient."""
  rows = (embedding.astype(jnp.float32) - mean) * scale

  def loss(kernel: Array, bias: Array) -> Array:
    logits = jnp.matmul(rows, kernel, precision="highest") + bias
    each = optax.softmax_cross_entropy_with_integer_labels(
      logits, jnp.maximum(label, 0)
    )
    return jnp.where(label >= 0, each, 0).sum()

  return jax.value_and_grad(loss, argnums=(0, 1))(kernel, bias)
