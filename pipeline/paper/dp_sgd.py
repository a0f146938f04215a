"""Heads by many noisy steps: DP-SGD with jax_privacy's clipping and accountant.

They are what the product's heads are compared with, on PUBLIC data only: no
ledger is charged, noise is float32 from a seed, and the learning rates were
chosen by test accuracy.
"""

import dataclasses
import functools
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax_privacy
import numpy as np
import optax
from jax_privacy import accounting, batch_selection, noise_addition
from jaxtyping import Array, Bool, Float, Int

import oneshot_dp
from oneshot_dp import LinearHead
from oneshot_dp.configs.head_config import HeadName, OneStepName
from oneshot_dp.linear_dp.heads.one_step import OPTIMIZERS

DELTA = 1e-6
INITIAL_BIAS = -10.0
_LEARNING_RATES: dict[OneStepName, float] = {
  "lamb": 0.6,
  "adam": 3.0,
  "momentum": 100.0,
}
_SEED = 0
_CHUNK_ROWS = 600
"""Rows of which gradients are taken at once. Poisson samples of 500 and 5,000
rows seldom need one chunk more."""
_ARRAYS = ("train_embedding", "train_label", "test_embedding", "test_label")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
  """Public embeddings and labels to train and to test on.

  Attributes:
    train_embedding: [n, d], of norm 1, to which clipping would cut them anyway.
    train_label: [n].
    test_embedding: [t, d], of norm 1.
    test_label: [t].
  """

  train_embedding: np.ndarray
  train_label: np.ndarray
  test_embedding: np.ndarray
  test_label: np.ndarray

  @classmethod
  def load(cls, path: Path) -> "Features":
    """Reads an npz that has an array for each attribute."""
    try:
      with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in _ARRAYS}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
      names = ", ".join(_ARRAYS)
      raise SystemExit(
        f"{path}: {error}: give an npz with the arrays {names}."
      ) from error
    print("NOT PRIVATE: public data, noise from a seed, charged to no ledger")
    return cls(
      train_embedding=_at_norm_1(arrays["train_embedding"]),
      train_label=arrays["train_label"],
      test_embedding=_at_norm_1(arrays["test_embedding"]),
      test_label=arrays["test_label"],
    )

  @property
  def num_classes(self) -> int:
    """K, read off the labels: all of it is public."""
    return int(self.train_label.max()) + 1

  def top1(self, heads: Sequence[LinearHead]) -> list[float]:
    """Returns the test accuracy of each head, in %."""
    rows = {"embedding": self.test_embedding, "label": self.test_label}
    accuracies = oneshot_dp.evaluate_heads(heads, [rows])
    return [100 * accuracy.top1 for accuracy in accuracies]

  def top1_of_product(
    self, head: HeadName, epsilons: Sequence[float]
  ) -> list[float]:
    """Trains the product's nested heads, and returns test accuracies in %.

    Args:
      head: the kind of head.
      epsilons: of the heads; they are trained together, the smallest ε first.

    Returns:
      One accuracy for each ε, in the order given. Noise is seeded.
    """
    trained = oneshot_dp.train_heads(
      self.train_embedding,
      self.train_label,
      num_classes=self.num_classes,
      head=head,
      epsilons=epsilons,
      delta=DELTA,
      source=oneshot_dp.NoiseSource(_SEED),
    )
    return self.top1([private_head.head for private_head in trained])

  def top1_of_steps(
    self, steps: "Steps", epsilons: Sequence[float | None]
  ) -> list[float]:
    """Trains a head for each ε by itself, and returns test accuracies in %.

    Args:
      steps: how each head is trained.
      epsilons: of the heads; None is no noise.

    Returns:
      One accuracy for each ε, in the order given.
    """
    heads = [train_steps(steps, self, epsilon) for epsilon in epsilons]
    return self.top1(heads)


def _at_norm_1(embedding: np.ndarray) -> np.ndarray:
  rows = embedding.astype(np.float32)
  norms = np.linalg.norm(rows, axis=1, keepdims=True)
  return rows / np.maximum(norms, 1e-12)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
  """The settings of a head of many steps.

  Attributes:
    optimizer: one of optax, as for the product's single step.
    epochs: how often a row is in a step, on average.
    batches: Poisson samples in an epoch; 1 is all rows in every step.
    init: standard deviation of the random weights to start from.
    ema: decay of the average of weights; 0 takes the last weights.
  """

  optimizer: OneStepName = "lamb"
  epochs: int = 1
  batches: int = 1
  init: float = 0.0
  ema: float = 0.0


class _Scales(NamedTuple):
  """Numbers that one step depends on.

  Attributes:
    learning_rate: of the optimizer.
    noise_multiplier: σ of the noise on the sum of gradients, each of norm 1.
    inverse_batch: 1 / (rows of a batch on average), which makes a sum a mean.
  """

  learning_rate: float
  noise_multiplier: float
  inverse_batch: float


def train_steps(
  steps: Steps, features: Features, epsilon: float | None
) -> LinearHead:
  """Trains by DP-SGD on the sigmoid cross-entropy, clipped to norm 1.

  It would be (ε, 1e-6)-DP by jax_privacy's accountant if rows and seed were
  secret and the arithmetic exact. It is here to compare accuracies with, and
  promises nothing.

  Args:
    steps: the optimizer, how many steps it takes, and what it begins at.
    features: public rows at norm 1.
    epsilon: ε of the comparison; None is no noise.

  Returns:
    A head for embeddings at norm 1: the last weights, or their average.
  """
  n, d = features.train_embedding.shape
  iterations = steps.epochs * steps.batches
  batch_rows = max(1, n // steps.batches)
  sigma = 0.0
  if epsilon:
    sigma = _noise_multiplier(epsilon, batch_rows, iterations, n)
  scales = _Scales(
    # Noise of many steps adds up with their root; what is learned must not
    # outgrow it.
    learning_rate=_LEARNING_RATES[steps.optimizer] / iterations**0.5,
    noise_multiplier=sigma,
    inverse_batch=1 / batch_rows,
  )
  key = jax.random.key(_SEED + 1)
  kernel = steps.init * jax.random.normal(key, (d, features.num_classes))
  state = _descent(steps.optimizer, scales).init(kernel)
  average = kernel
  samples = batch_selection.CyclicPoissonSampling(
    sampling_prob=batch_rows / n, iterations=iterations
  )
  # Poisson samples, since the accountant assumes them: each row is in each
  # batch by a coin of its own, so batches have different sizes and are padded.
  for sample in samples.batch_iterator(n, rng=_SEED):
    # Row −1 is padding. One at least, as a sample may be empty.
    padded = np.append(sample, -1)
    rows = batch_selection.pad_to_multiple_of(padded, _CHUNK_ROWS)
    kernel, state = _step(
      steps.optimizer,
      scales,
      kernel,
      state,
      features.train_embedding[rows],
      features.train_label[rows],
      rows == -1,
    )
    # An average of weights that are private is post-processing: it costs
    # nothing.
    average = optax.incremental_update(kernel, average, 1 - steps.ema)
  bias = np.full(features.num_classes, INITIAL_BIAS, np.float32)
  return LinearHead(kernel=np.asarray(average), bias=bias, unit_norm=True)


def _descent(
  optimizer: OneStepName, scales: _Scales
) -> optax.GradientTransformation:
  """Adds noise to a sum of sensitivity 1, makes it a mean, and steps."""
  noise: Any = noise_addition.gaussian_privatizer(
    stddev=scales.noise_multiplier, prng_key=_SEED
  )
  return optax.chain(
    noise,
    optax.scale(scales.inverse_batch),
    OPTIMIZERS[optimizer],
    optax.scale(scales.learning_rate),
  )


@functools.partial(jax.jit, static_argnames="optimizer")
def _step(
  optimizer: OneStepName,
  scales: _Scales,
  kernel: Float[Array, "d K"],
  state: Any,
  embedding: Float[Array, "rows d"],
  label: Int[Array, " rows"],
  is_padding: Bool[Array, " rows"],
) -> tuple[Any, Any]:
  """One step along the noisy sum of clipped gradients of a batch."""
  gradient_sum = jax_privacy.clipped_grad(
    _loss,
    l2_clip_norm=1.0,
    batch_argnums=(1, 2),
    keep_batch_dim=False,
    microbatch_size=_CHUNK_ROWS,
  )
  clipped = gradient_sum(
    kernel, embedding, label, is_padding_example=is_padding
  )
  update, state = _descent(optimizer, scales).update(clipped, state, kernel)
  return optax.apply_updates(kernel, update), state


def _loss(
  kernel: Float[Array, "d K"], row: Float[Array, " d"], label: Int[Array, ""]
) -> Float[Array, ""]:
  targets = jax.nn.one_hot(label, kernel.shape[1])
  logits = row @ kernel + INITIAL_BIAS
  return optax.sigmoid_binary_cross_entropy(logits, targets).sum()


@functools.cache
def _noise_multiplier(
  epsilon: float, batch_rows: int, iterations: int, n: int
) -> float:
  """σ by privacy loss distributions, on a fine grid that adds little to it."""
  config = accounting.PldAccountantConfig(
    value_discretization_interval=min(1e-3, epsilon / 1000)
  )
  return accounting.calibrate_noise_multiplier(
    target_epsilon=epsilon,
    target_delta=DELTA,
    accountant=accounting.DpsgdTrainingAccountant(config),
    initial_min_noise=0.3,
    batch_sizes=batch_rows,
    num_updates=iterations,
    num_samples=n,
  )
