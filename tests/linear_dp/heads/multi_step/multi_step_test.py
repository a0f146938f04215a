"""Heads of several noisy steps, from the rule to what an attacker can tell."""

import functools
import itertools
import math
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import optax
import pytest
import scipy.stats
from dp_accounting import (
  NeighboringRelation,
)

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import SamplingName
from oneshot_dp.linear_dp.heads.descent import initial_kernel
from oneshot_dp.linear_dp.heads.multi_step import training as multi_step
from oneshot_dp.linear_dp.heads.multi_step.batches import Batches
from oneshot_dp.linear_dp.heads.multi_step.rule import (
  MultiStepRule,
  learning_rate,
)
from oneshot_dp.linear_dp.heads.own_noise import Door
from oneshot_dp.linear_dp.noise import source
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.linear_dp.statistics.exact_map import integer_kernel
from oneshot_dp.linear_dp.statistics.row_gradient import SOFTMAX, Loss
from oneshot_dp.linear_dp.trainer import unseen
from tests.extract.backbones.conv_cases import SOON
from tests.linear_dp.blocks import Block, make_block, steps_of
from tests.linear_dp.watched import Noise, all_noise, recorded

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
K, D, N = 4, 6, 150
PAPER = Loss(name="sigmoid", bias=-10.0)
SAMPLINGS: list[SamplingName] = ["full", "partition", "poisson"]
# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4
pytestmark = pytest.mark.usefixtures("small_chunks")


@functools.cache
def clusters() -> Block:
  """Rows whose classes lie apart; some are longer than R = 300."""
  rng = np.random.default_rng(4)
  label = rng.integers(0, K, N)
  centres = rng.standard_normal((K, D))
  rows = centres[label] + rng.standard_normal((N, D)) + 1
  return make_block(50 * rows.astype(np.float32), label)


def zero_rows(n=5) -> Block:
  """Nothing but noise comes of them."""
  return make_block(np.zeros((n, D), np.float32), np.arange(n) % K)


def batches_of(sampling: SamplingName, n=N, batch_size=0, epochs=2) -> Batches:
  return Batches(
    sampling=sampling,
    num_examples=n,
    batch_size=batch_size or (n if sampling == "full" else n // 3),
    epochs=epochs,
  )


def rule_of(**changes: Any) -> MultiStepRule:
  options: dict[str, Any] = {
    "num_classes": K,
    "feature_dim": D,
    "noise_multiplier": 1.0,
    "optimizer": "momentum",
    "learning_rate": 0.5,
    "clip_norm": 0.3,
    "loss": SOFTMAX,
    "max_norm": None,
    "init": "zero",
    "init_scale": 1.0,
    "init_seed": 0,
    "ema_decay": None,
    "batches": batches_of("full"),
  }
  return MultiStepRule(**options | changes)


def trained(
  block: Block,
  rule,
  source,
  relation=REPLACE_SPECIAL,
  on_release=unseen,
  **options,
):
  rows = steps_of(block, max_norm=rule.max_norm, **options)
  return multi_step.train(rows, rule, Door(relation, source, on_release))


@pytest.fixture
def drawn(monkeypatch) -> list[Noise]:
  return all_noise(monkeypatch, gradient_sum)


def within(value: float, law) -> bool:
  return P_VALUE < law.cdf(value) < 1 - P_VALUE


# The rule.


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"init_scale": -1.0}, "init_scale=-1.0 is not 0 or more"),
    ({"init_scale": math.inf}, "init_scale=inf is not 0 or more"),
    ({"ema_decay": 1.0}, r"ema_decay=1.0 is not in \[0, 1\)"),
    ({"ema_decay": -0.1}, r"ema_decay=-0.1 is not in \[0, 1\)"),
  ],
)
def test_settings_that_cannot_be_are_refused(changes, said):
  with pytest.raises(InputError, match=said):
    rule_of(**changes)


@pytest.mark.parametrize("epochs", [20, 100])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_noise_alone_moves_a_logit_by_about_b(sampling, epochs):
  """The walk of the weights where gradients are noise, step by step."""
  batches = batches_of(sampling, epochs=epochs)
  step = batches.step_noise_multiplier(10.0)
  lr = learning_rate(
    "momentum",
    num_classes=10,
    clip_norm=0.7,
    batches=batches,
    step_noise_multiplier=step,
  )
  # How much of the noise of a step is in the weights at the end.
  lasting = (1 - 0.9 ** np.arange(1, batches.num_steps + 1)) / (1 - 0.9)
  moved = lr * step * 0.7 / batches.mean_size * np.linalg.norm(lasting)
  assert 0.6 * 1.5 < moved < 1.5


# The algorithm, by other means.


OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
  "momentum": lambda lr: optax.sgd(lr, momentum=0.9),
  "adam": lambda lr: optax.adam(lr, b1=0.9, b2=0.999, eps=1e-6),
  "lamb": lambda lr: optax.lamb(lr, b1=0.9, b2=0.999, eps=1e-6),
}


def reference(
  block: Block, rule: MultiStepRule, masks: list[np.ndarray], divisor: float
) -> np.ndarray:
  """Every step by optax, and jax.grad of a loss of rounded weights, by row."""
  z = block.embedding.astype(np.float64)
  length = np.linalg.norm(z, axis=1, keepdims=True)
  z *= (1 if rule.max_norm is None else np.minimum(length, rule.max_norm)) / (
    length
  )

  def loss(kernel, row, label):
    logits, target = row @ kernel + rule.loss.bias, jax.nn.one_hot(label, K)
    if rule.loss.name == "softmax":
      return optax.softmax_cross_entropy(logits, target)
    return optax.sigmoid_binary_cross_entropy(logits, target).sum()

  optimizer = OPTIMIZERS[rule.optimizer](rule.learning_rate)

  @functools.partial(jax.jit, compiler_options=SOON)
  def step(kernel, rounded, state, mask):
    each = jax.vmap(jax.grad(loss), (None, 0, 0))(rounded, z, block.label)
    norm = jax.numpy.linalg.norm(each.reshape(len(z), -1), axis=1)
    weight = mask * jax.numpy.minimum(1, rule.clip_norm / norm)
    mean = jax.numpy.tensordot(weight, each, 1) / divisor
    updates, state = optimizer.update(mean, state, kernel)
    return optax.apply_updates(kernel, updates), state

  start = initial_kernel(rule.init, rule.init_scale, (D, K), rule.init_seed)
  with jax.enable_x64(True):
    kernel, state = jax.numpy.asarray(start), None
    state = optimizer.init(kernel)
    path = []
    for mask in masks:
      integers, power = integer_kernel(np.asarray(kernel))
      rounded = np.ldexp(integers, -power)
      kernel, state = step(kernel, rounded, state, mask.astype(np.float64))
      path.append(np.asarray(kernel))
  if rule.ema_decay is None:
    final = path[-1]
  else:
    weight = rule.ema_decay ** np.arange(len(path) - 1, -1, -1.0)
    final = np.tensordot(weight / weight.sum(), np.array(path), 1)
  if rule.max_norm is None:
    final = final / np.linalg.norm(final, axis=0).max()
  return final


RULES = {
  "softmax": {"optimizer": "momentum"},
  "softmax, lecun, averaged": {
    "optimizer": "lamb",
    "init": "lecun",
    "init_seed": 3,
    "learning_rate": 0.1,
    "ema_decay": 0.7,
  },
  "as the paper, more steps": {
    "optimizer": "lamb",
    "loss": PAPER,
    "max_norm": 300.0,
    "clip_norm": 100.0,
    "learning_rate": 0.1,
  },
  "adam, normal, averaged": {
    "optimizer": "adam",
    "loss": PAPER,
    "max_norm": 300.0,
    "clip_norm": 50.0,
    "init": "normal",
    "init_scale": 0.01,
    "learning_rate": 0.03,
    "ema_decay": 0.9,
  },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RULES)
def test_without_noise_it_is_the_algorithm(case, drawn):
  rule = rule_of(batches=batches_of("full", epochs=12), **RULES[case])
  found = trained(clusters(), rule, None)
  assert drawn == []
  expected = reference(clusters(), rule, [np.ones(N, bool)] * 12, N)
  # Rows are on a grid of 2⁻¹⁴, and a little shorter for their rounding.
  size = np.abs(expected).max()
  np.testing.assert_allclose(found.kernel, expected, atol=5e-3 * size)
  bias = 0.0 if rule.max_norm is None else rule.loss.bias
  assert (np.asarray(found.bias) == bias).all()
  logits = clusters().embedding @ np.asarray(found.kernel)
  hits = np.argmax(logits, axis=1) == clusters().label
  assert hits.mean() > 0.4  # it learns
  assert (clusters().embedding_norm > 300).any()


@pytest.mark.parametrize(
  ("sampling", "seed", "resident"),
  [("partition", 1, 0), ("poisson", 1, 2**30), ("poisson", None, 0)],
)
def test_each_step_is_of_its_own_rows(monkeypatch, sampling, seed, resident):
  """As the source of the noise says, and divided by their mean number."""
  monkeypatch.setattr(
    gradient_sum,
    "rounded_gaussian",
    lambda shape, sd, source: np.zeros(shape, np.int64),
  )
  # Logits are thousands here: of one draw in 60 a row lies so near to two
  # classes that its rounding moves the steps after it.
  system = types.SimpleNamespace(urandom=np.random.default_rng(0).bytes)
  monkeypatch.setattr(source, "os", system)
  steps = recorded(monkeypatch, multi_step, "clipped_gradient")
  rule = rule_of(batches=batches_of(sampling), max_norm=300.0, clip_norm=90.0)
  found = trained(clusters(), rule, NoiseSource(seed), resident_bytes=resident)
  masks = [options["chosen"] for _, options, _ in steps]
  assert len(masks) == 6
  if seed is not None:
    expected = list(
      rule.batches.chosen(NoiseSource(seed), rule.batches.num_examples)
    )
    np.testing.assert_array_equal(masks, expected)
  assert 0.2 < np.mean(masks) < 0.5
  divisor = rule.batches.mean_size
  assert divisor == pytest.approx(50, rel=1e-6)
  expected = reference(clusters(), rule, masks, divisor)
  size = np.abs(expected).max()
  np.testing.assert_allclose(found.kernel, expected, atol=5e-3 * size)
  assert size > 10


def test_a_baseline_samples_too(drawn, monkeypatch):
  steps = recorded(monkeypatch, multi_step, "clipped_gradient")
  rule = rule_of(batches=batches_of("poisson"), noise_multiplier=0.0)
  trained(clusters(), rule, None)
  trained(clusters(), rule, None)
  masks = [options["chosen"] for _, options, _ in steps]
  assert len({mask.tobytes() for mask in masks}) == 12
  assert drawn == []


# Noise.


@pytest.mark.parametrize(
  ("relation", "sampling"),
  [
    (REPLACE_SPECIAL, "full"),
    (REPLACE, "partition"),
    (REPLACE_SPECIAL, "poisson"),
  ],
)
def test_the_noise_that_is_added_is_paid_for(
  drawn, monkeypatch, relation, sampling
):
  """Σ (Δ/sd)² over all that a row is in is at most 1/σ², and hardly less."""
  secrets = recorded(monkeypatch, multi_step, "clipped_gradient")
  rule = rule_of(
    batches=batches_of(sampling, epochs=4),
    noise_multiplier=0.7,
    loss=PAPER,
    max_norm=300.0,
    init="normal",
  )
  source = NoiseSource(3)
  told = []
  trained(clusters(), rule, source, relation, told.append)
  steps = 4 if sampling == "full" else 12
  assert len(drawn) == len(secrets) == len(told) == steps
  assert all(noise.source is source for noise in drawn)
  removals = 2 if relation is REPLACE else 1
  rounding = Fraction(math.isqrt(K * D * 2**80) + 1, 2**40)
  spent = []
  for noise, (_, options, secret) in zip(drawn, secrets, strict=True):
    assert noise.shape == (D, K)
    assert secret.clip_norm == 0.3
    assert options["loss"] == PAPER
    sensitivity = removals * (GRID_RADIUS + rounding)
    spent.append(sensitivity**2 / Fraction(noise.sd) ** 2)
  # A row is in all steps; or in one of three of each epoch; or each step is
  # accounted for by itself.
  most = {"full": 4, "partition": 4, "poisson": 1}[sampling]
  limit = Fraction(0.7) ** -2
  assert max(spent) * most <= limit
  assert min(spent) * most >= limit * (1 - Fraction(1, 10**5))
  # And what was drawn is what was asked for.
  values = np.concatenate([n.values.ravel() / n.sd for n in drawn])
  assert within((values**2).sum(), scipy.stats.chi2(values.size))


@pytest.mark.parametrize("seed", [None, 3])
def test_every_step_has_noise_of_its_own(drawn, seed):
  rule = rule_of(batches=batches_of("full", epochs=40))
  source = NoiseSource(seed)
  heads = [trained(clusters(), rule, source) for _ in range(2)]
  assert len(drawn) == 80
  # No number twice, whatever it was multiplied by; of bits that differ from run
  # to run a few may be, by chance, and no step has so few.
  values = np.array([n.values.ravel() / n.sd for n in drawn])
  by_chance = 3 if seed is None else 0
  assert len(np.unique(np.abs(values))) >= values.size - by_chance
  assert heads[0].kernel.tobytes() != heads[1].kernel.tobytes()
  if seed is not None:  # nor does one step say anything of another
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    cosines = (values @ values.T)[np.triu_indices(80, 1)]
    assert np.mean(cosines**2) == pytest.approx(1 / (K * D), rel=0.1)
    assert abs(cosines.mean()) < 5 / math.sqrt(cosines.size * K * D)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_extremes_are_finite(optimizer):
  for sampling, sigma in itertools.product(SAMPLINGS, (1e-4, 2.0**20)):
    rule = rule_of(
      optimizer=optimizer,
      noise_multiplier=sigma,
      batches=batches_of(sampling, n=6),
    )
    head = trained(zero_rows(6), rule, NoiseSource(1))
    assert np.isfinite(head.kernel).all()
    assert np.linalg.norm(head.kernel, axis=0).max() == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["softmax", "as the paper, more steps"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_same_bytes_on_any_devices(monkeypatch, sampling, case):
  """And in any order, where no batch is drawn by places."""
  rule = rule_of(batches=batches_of(sampling), **RULES[case])
  found = set()
  for devices, platforms in ((1, ("cpu",)), (2, ("cpu",)), (8, ())):
    monkeypatch.setattr(secret_rows, "FLOAT64_PLATFORMS", platforms)
    order = np.arange(N)
    if sampling == "full":
      order = np.random.default_rng(devices).permutation(N)
    head = trained(clusters()[order], rule, NoiseSource(1), devices=devices)
    found.add(head.kernel.tobytes() + head.bias.tobytes())
  assert len(found) == 1
