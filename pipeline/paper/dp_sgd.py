"""Heads by many noisy steps: jax_privacy's DP-SGD and accountant.

To compare the product's heads with, on PUBLIC data only: nothing is charged to
a ledger, noise is float32 of a seed, and learning rates were chosen by looking.
"""

import dataclasses
import functools
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

DELTA, BIAS = 1e-6, -10.0
_RATES = {"lamb": 0.6, "adam": 3.0, "momentum": 100.0}
_SEED = 0
_CHUNK = 600  # of which batches of 500 and 5,000 seldom need one more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
  """Public embeddings [n, d] and labels [n] to train and test on.

  Embeddings are of norm 1, to which clipping would shorten them anyway.
  """

  train_embedding: np.ndarray
  train_label: np.ndarray
  test_embedding: np.ndarray
  test_label: np.ndarray

  @classmethod
  def of(cls, path: Path) -> "Features":
    """Those of an npz with arrays of these names."""
    names = [field.name for field in dataclasses.fields(cls)]
    try:
      with np.load(path, allow_pickle=False) as found:
        arrays = {name: found[name] for name in names}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
      raise SystemExit(f"{path}: {error}: give an npz of {names}.") from error
    for name in "train_embedding", "test_embedding":
      rows = arrays[name].astype(np.float32)
      norms = np.linalg.norm(rows, axis=1, keepdims=True)
      arrays[name] = rows / np.maximum(norms, 1e-12)
    print("NOT PRIVATE: public data, noise from a seed, charged to no ledger")
    return cls(**arrays)

  @property
  def num_classes(self) -> int:
    """K, from the labels: all of it is public."""
    return int(self.train_label.max()) + 1

  def top1(self, heads: Sequence[LinearHead]) -> list[float]:
    """Test accuracies in %."""
    rows = {"embedding": self.test_embedding, "label": self.test_label}
    return [100 * a.top1 for a in oneshot_dp.evaluate_heads(heads, [rows])]

  def product(self, name: HeadName, epsilons: Sequence[float]) -> list[float]:
    """Accuracies in % of the product's heads, nested, at each ε."""
    source = oneshot_dp.NoiseSource(_SEED)
    budget = {"epsilons": epsilons, "delta": DELTA, "source": source}
    rows = self.train_embedding, self.train_label
    how = {"num_classes": self.num_classes, "head": name}
    heads = oneshot_dp.train_heads(*rows, **how, **budget)
    return self.top1([head.head for head in heads])

  def many_steps(self, steps: "Steps", epsilons: Sequence) -> list[float]:
    """Accuracies in % of `steps`, each ε by itself; None is no noise."""
    return self.top1([steps.train(self, epsilon) for epsilon in epsilons])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
  """How a head of many steps is trained.

  Attributes:
    optimizer: of optax, as the single step's.
    epochs: how often a row is in a step, on average.
    batches: Poisson samples in an epoch; 1 is all rows in every step.
    init: the standard deviation of the random weights to start from.
    ema: the decay of averaged weights; 0 is the last ones.
  """

  optimizer: OneStepName = "lamb"
  epochs: int = 1
  batches: int = 1
  init: float = 0.0
  ema: float = 0.0

  def train(self, features: Features, epsilon: float | None) -> LinearHead:
    """DP-SGD of the sigmoid cross-entropy, clipped to norm 1.

    (ε, 1e-6)-DP by jax_privacy's accountant, if rows and seed were secret and
    the arithmetic exact.
    """
    n, d = features.train_embedding.shape
    count, batch = self.epochs * self.batches, max(1, n // self.batches)
    sigma = _noise_multiplier(epsilon, batch, count, n) if epsilon else 0.0
    # Noise that adds up grows with √count, and so shall not what is learnt.
    rate = _RATES[self.optimizer] / count**0.5
    k, key = features.num_classes, jax.random.key(_SEED + 1)
    kernel = self.init * jax.random.normal(key, (d, k))
    how = self.optimizer, (rate, sigma, 1 / batch)
    state, average = _descent(*how).init(kernel), kernel
    samples = batch_selection.CyclicPoissonSampling(
      sampling_prob=batch / n, iterations=count
    )
    for rows in samples.batch_iterator(n, rng=_SEED):
      # A row of -1 is no row: one at least, as a sample may be empty.
      rows = batch_selection.pad_to_multiple_of(np.append(rows, -1), _CHUNK)
      x, y = features.train_embedding[rows], features.train_label[rows]
      kernel, state = _step(*how, kernel, state, x, y, rows == -1)
      average = optax.incremental_update(kernel, average, 1 - self.ema)
    kernel, bias = np.asarray(average), np.full(k, BIAS, np.float32)
    return LinearHead(kernel=kernel, bias=bias, unit_norm=True)


def _descent(optimizer: OneStepName, scales: tuple) -> Any:
  """A sum of sensitivity 1 gets noise and is a mean; the optimizer steps."""
  rate, sigma, mean = scales
  noise = noise_addition.gaussian_privatizer(stddev=sigma, prng_key=_SEED)
  steps = OPTIMIZERS[optimizer], optax.scale(rate)
  return optax.chain(noise, optax.scale(mean), *steps)


@functools.partial(jax.jit, static_argnums=0)
def _step(
  optimizer: OneStepName,
  scales: tuple,
  kernel: Float[Array, "d K"],
  state: Any,
  x: Float[Array, "rows d"],
  y: Int[Array, " rows"],
  padding: Bool[Array, " rows"],
) -> tuple[Any, Any]:
  args = {"l2_clip_norm": 1.0, "batch_argnums": (1, 2), "keep_batch_dim": False}
  gradient = jax_privacy.clipped_grad(_loss, microbatch_size=_CHUNK, **args)
  clipped = gradient(kernel, x, y, is_padding_example=padding)
  update, state = _descent(optimizer, scales).update(clipped, state, kernel)
  return optax.apply_updates(kernel, update), state


def _loss(
  kernel: Float[Array, "d K"], x: Float[Array, " d"], y: Int[Array, ""]
) -> Float[Array, ""]:
  labels = jax.nn.one_hot(y, kernel.shape[1])
  return optax.sigmoid_binary_cross_entropy(x @ kernel + BIAS, labels).sum()


@functools.cache
def _noise_multiplier(epsilon: float, batch: int, steps: int, n: int) -> float:
  """By privacy loss distributions, fine enough not to ask for more noise."""
  fine = min(1e-3, epsilon / 1000)
  config = accounting.PldAccountantConfig(value_discretization_interval=fine)
  rows = {"batch_sizes": batch, "num_updates": steps, "num_samples": n}
  return accounting.calibrate_noise_multiplier(
    target_epsilon=epsilon,
    target_delta=DELTA,
    accountant=accounting.DpsgdTrainingAccountant(config),
    initial_min_noise=0.3,
    **rows,
  )
