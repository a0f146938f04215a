"""Whitened heads, from the rule's budget to what an attacker can tell."""

import contextlib
import dataclasses
import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis
import jax
import numpy as np
import optax
import pytest
import scipy.stats
from dp_accounting import (
  NeighboringRelation,
)
from hypothesis import strategies as st

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.own_noise import GRADIENT_SUM
from oneshot_dp.linear_dp.heads.whitened import budget, releases
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics import gradient_sum, second_moment
from oneshot_dp.linear_dp.statistics.class_moments import (
  class_moments,
)
from oneshot_dp.linear_dp.trainer import TrainingRows
from tests.extract.backbones.conv_cases import SOON
from tests.linear_dp.blocks import (
  DTYPES,
  Block,
  make_block,
  random_block,
  rows_of,
)
from tests.linear_dp.watched import Noise, all_noise, recorded

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
K, D, N = 4, 6, 150
# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4
pytestmark = pytest.mark.usefixtures("small_chunks")


@functools.cache
def clusters() -> Block:
  """Rows whose classes lie apart, in few of the directions."""
  rng = np.random.default_rng(4)
  label = rng.integers(0, K, N)
  centres = rng.standard_normal((K, D))
  rows = centres[label] + rng.standard_normal((N, D)) + 2
  return make_block(rows.astype(np.float32), label)


def zero_rows() -> Block:
  """Nothing but noise comes of them."""
  return make_block(np.zeros((5, D), np.float32), [0, 1, 2, 3, 0])


def plan_of(*epsilons: float, **changes: Any) -> ReleasePlan:
  options: dict[str, Any] = {"delta": 1e-5, "order": "independent"}
  return ReleasePlan(epsilons=epsilons or (1.0,), **options | changes)


def uncharged(plan: ReleasePlan, source: NoiseSource) -> None:
  del plan, source


def trainer(rows, moment, on_step=lambda: None, centres=True):
  """A trainer that has read these rows."""

  class Bar(contextlib.nullcontext):
    def update(self):
      on_step()

  made = whitened.WhitenedTrainer(
    TrainingRows(
      blocks=list,
      feature_dim=rows.feature_dim,
      num_classes=rows.num_classes,
      num_examples=rows.num_examples,
      are_centred=not centres,
    ),
    [HeadConfig(head="whitened")],
    lambda *_: contextlib.nullcontext(Bar()),
  )
  made._rows, made._moment = rows, moment
  return made


def released(
  block: Block,
  plan: ReleasePlan,
  seed: int | None = 0,
  centres: bool = True,
  **options: Any,
) -> list[Any]:
  rows = rows_of(block, **options)
  made = trainer(rows, class_moments(rows), centres=centres)
  return list(made.release(plan, NoiseSource(seed), uncharged))


# centres, whitens
CASES = list(itertools.product((True, False), repeat=2))


def set_whitens(patch: pytest.MonkeyPatch, whitens: bool) -> None:
  """However many rows there are."""
  patch.setattr(WhiteningRule, "whitens", whitens)


def rule_of(
  sigma: float, n=N, d=D, num_classes=K, **changes: Any
) -> WhiteningRule:
  return WhiteningRule(
    num_examples=n,
    feature_dim=d,
    num_classes=num_classes,
    noise_multiplier=sigma,
    **changes,
  )


@pytest.fixture
def drawn(monkeypatch) -> list[Noise]:
  return all_noise(monkeypatch, second_moment, gradient_sum)


# The budget.

BEGUN: list[dict[str, Any]] = [
  {},
  {"centres": False, "balances": True},
  {"centres": False, "start_sha256": "0f" * 32, "compares": True},
  {"clipped": "mean", "noisy_units": 70},
]
SIZES = [(150, 6, 4), (1, 1, 2), (50_000, 192, 10), (1_281_167, 1280, 1000)]


def multipliers(rule: WhiteningRule) -> list[tuple[float, int]]:
  """All Gaussian mechanisms of a head: noise multiplier, how many."""
  once = [
    rule.unit_noise_multiplier,
    rule.mean_noise_multiplier,
    rule.moment_noise_multiplier,
    rule.count_noise_multiplier,
    rule.compared_noise_multiplier,
  ]
  found = [(sigma, 1) for sigma in once if sigma is not None]
  return [*found, (rule.step_noise_multiplier, rule.num_steps)]


@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize(("n", "d", "num_classes"), SIZES)
@hypothesis.settings(max_examples=20)
@hypothesis.given(
  sigma=st.one_of(
    st.sampled_from([1.0, math.nextafter(1, 0), math.nextafter(1, 2)]),
    st.floats(-7, 20).map(lambda e: 2.0**e),
  )
)
def test_all_mechanisms_together_have_the_sigma_of_the_head(
  n, d, num_classes, begun, sigma
):
  """Σ σ_i⁻² in rationals: never more than it may be, and hardly less."""
  for whitens in (True, False, None):  # None: as it is
    with pytest.MonkeyPatch.context() as patch:
      if whitens is not None:
        set_whitens(patch, whitens)
      rule = rule_of(sigma, n, d, num_classes, **begun)
      assert (rule.mean_noise_multiplier is not None) == rule.centres
      assert (rule.moment_noise_multiplier is not None) == rule.whitens
      spent = sum(
        (count * Fraction(sd) ** -2 for sd, count in multipliers(rule)),
        Fraction(0),
      )
    assert spent <= Fraction(sigma) ** -2
    assert spent >= Fraction(sigma) ** -2 * (1 - Fraction(1, 10**12))


@pytest.mark.parametrize("begun", BEGUN)
@hypothesis.given(
  sigma=st.floats(-7, 20).map(lambda e: 2.0**e),
  apart=st.floats(-20, 10).map(lambda e: 2.0**e),
)
def test_what_goes_on_pays_for_what_is_new(begun, sigma, apart):
  """Σ σ_i⁻² of its own, and of the head before, in rationals."""
  before = sigma * (1 + apart)
  rule = rule_of(sigma, 50_000, **begun)
  rule = dataclasses.replace(rule, before_noise_multiplier=before)
  own = sum(
    (count * Fraction(sd) ** -2 for sd, count in multipliers(rule)), Fraction(0)
  )
  spent = own + Fraction(before) ** -2
  assert spent <= Fraction(sigma) ** -2
  assert spent >= Fraction(sigma) ** -2 * (1 - Fraction(1, 10**12))
  assert rule.maps == (own > Fraction(before) ** -2)


@pytest.mark.slow
def test_each_head_of_a_nested_sweep_goes_on_from_the_last(monkeypatch):
  """What the first k released is the k-th's own cost; the least ε is first."""
  starts = recorded(monkeypatch, whitened, "descend")
  monkeypatch.setattr(budget, "ROWS_TO_WHITEN", 1.0)
  plan = plan_of(8.0, 1.0, 7.5, num_draws=2, order="nested")
  rows, seen = rows_of(clusters()), []
  nested = trainer(rows, class_moments(rows))
  heads = list(nested.release(plan, NoiseSource(3), uncharged, seen.append))
  assert [(h.draw, h.statement.epsilon) for h in heads] == [
    *itertools.product((0, 1), (8.0, 7.5, 1.0))
  ]
  assert [bool(args[0].any()) for args, *_ in starts] == 2 * [False, True, True]
  for draw in range(2):
    spent = 0.0
    for head in reversed(heads[3 * draw : 3 * draw + 3]):
      rule = head.mechanism
      assert isinstance(rule, WhiteningRule)
      names = ["mean", "second moment"] * rule.maps
      names += [GRADIENT_SUM] * rule.num_steps
      assert rule.maps == (head.statement.epsilon != 8.0)
      own, seen = seen[: len(names)], seen[len(names) :]
      assert [each.name for each in own] == names
      spent += sum(each.noise_multiplier**-2 for each in own)
      sigma = plan.noise_multipliers[head.statement.epsilon]
      assert head.statement.noise_multiplier == sigma
      assert sigma <= spent**-0.5 < sigma * (1 + 1e-9)
  assert not seen
  assert plan.charged_noise_multipliers == 2 * (plan.noise_multipliers[8.0],)
  (alone,) = released(clusters(), plan_of(1.0), 3)
  np.testing.assert_array_equal(alone.head.kernel, heads[2].head.kernel)


@pytest.mark.parametrize("num_classes", [2, 10, 1000])
@pytest.mark.parametrize("sigma", [0.0, 0.125, 0.75, 4.0])
def test_it_whitens_from_80_rows_of_a_class_and_sigma(num_classes, sigma):
  n = int(80 * num_classes * sigma)
  assert rule_of(sigma, n, num_classes=num_classes).whitens
  assert rule_of(sigma, n + 1, num_classes=num_classes).whitens
  if sigma:
    assert not rule_of(sigma, n - 1, num_classes=num_classes).whitens
    more = math.nextafter(sigma, 9)
    assert not rule_of(more, n, num_classes=num_classes).whitens
    # For the budget, what is not released is not paid for.
    assert rule_of(more, n, num_classes=num_classes).moment_share == 0


@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.5, 40.0])
@pytest.mark.parametrize(("n", "d", "num_classes"), SIZES)
def test_noise_alone_moves_a_logit_by_about_b(sigma, n, d, num_classes):
  """The walk of the weights where gradients are noise, step by step."""
  rule = rule_of(sigma, n, d, num_classes)
  noise = rule.step_noise_multiplier * rule.clip_norm / n
  # How much of the noise of a step is in the weights at the end.
  m = rule.momentum
  lasting = (1 - m ** np.arange(1, rule.num_steps + 1)) / (1 - m)
  moved = rule.learning_rate * noise * np.linalg.norm(lasting)
  walk = (1 + math.log10(num_classes) / 2) * min(sigma, 1)
  assert 0.8 * walk < moved < walk


# Noise.


@pytest.mark.parametrize(
  ("relation", "epsilon", "centres", "whitens"),
  [
    (REPLACE_SPECIAL, 0.5, True, True),
    (REPLACE, 8.0, True, False),
    (REPLACE_SPECIAL, 8.0, False, True),
    (REPLACE, 8.0, False, False),
  ],
)
def test_the_noise_that_is_added_is_paid_for(
  drawn, monkeypatch, relation, epsilon, centres, whitens
):
  """Σ (Δ/sd)² over all that a head adds noise to is at most 1/σ²."""
  set_whitens(monkeypatch, whitens)
  secrets = recorded(monkeypatch, whitened, "clipped_gradient")
  plan = plan_of(epsilon, neighboring_relation=relation)
  (head,) = released(clusters(), plan, centres=centres)
  removals = 2 if relation is REPLACE else 1
  steps, spent = list(drawn), Fraction(0)
  if centres:
    mean = steps.pop(0)
    assert mean.shape == (D,)
    spent += Fraction(removals * GRID_RADIUS) ** 2 / Fraction(mean.sd) ** 2
  if whitens:
    above, diagonal = steps.pop(0), steps.pop(0)
    assert (above.shape, diagonal.shape) == ((D * (D - 1) // 2,), (D,))
    # Entries above the diagonal count twice.
    sd = min(Fraction(diagonal.sd) ** 2, 2 * Fraction(above.sd) ** 2)
    spent += Fraction(removals * (GRID_RADIUS + D)) ** 2 / sd
  assert len(steps) == len(secrets) == head.mechanism.num_steps
  rounding = Fraction(math.isqrt(K * D * 2**80) + 1, 2**40)
  for noise, (args, _, secret) in zip(steps, secrets, strict=True):
    assert noise.shape == (D, K)
    assert args[2] == secret.clip_norm == head.mechanism.clip_norm
    sensitivity = removals * (GRID_RADIUS + rounding)
    spent += sensitivity**2 / Fraction(noise.sd) ** 2
  sigma = Fraction(noise_multiplier(epsilon, 1e-5))
  assert spent <= sigma**-2
  assert spent >= sigma**-2 * (1 - Fraction(1, 10**6))
  assert head.statement.noise_multiplier == sigma
  # And what was drawn is what was asked for.
  values = np.concatenate([n.values.ravel() / n.sd for n in drawn])
  law = scipy.stats.chi2(values.size)
  assert P_VALUE < law.cdf((values**2).sum()) < 1 - P_VALUE


@pytest.mark.parametrize("seed", [None, 3])
def test_every_head_and_draw_has_noise_of_its_own(drawn, monkeypatch, seed):
  set_whitens(monkeypatch, True)
  gradients = recorded(monkeypatch, whitened, "release_gradient")
  moments = recorded(monkeypatch, releases, "release_moment")
  means = recorded(monkeypatch, releases, "release_mean")
  plan = plan_of(1.0, 8.0, num_draws=2)
  heads = released(zero_rows(), plan, seed)
  assert [(h.draw, h.statement.epsilon) for h in heads] == [
    *itertools.product((0, 1), (8.0, 1.0))
  ]
  steps = sum(h.mechanism.num_steps for h in heads)
  assert len(drawn) == 3 * len(heads) + steps
  found = (len(means), len(moments), len(gradients))
  assert found == (len(heads), len(heads), steps)
  # No number twice, whatever it was multiplied by; of bits that differ from run
  # to run a few may be, by chance, and no release has so few.
  values = np.concatenate([np.abs(n.values.ravel()) / n.sd for n in drawn])
  by_chance = 3 if seed is None else 0
  assert len(np.unique(values)) >= values.size - by_chance
  # Nor does one step or head say anything of another.
  noise = np.array([result.ravel() for *_, result in gradients])
  noise /= np.linalg.norm(noise, axis=1, keepdims=True)
  cosines = (noise @ noise.T)[np.triu_indices(len(noise), 1)]
  if seed is not None:  # of 51,040 pairs in 24 dimensions
    assert np.abs(cosines).max() < 0.9
    assert abs(cosines.mean()) < 5 / math.sqrt(cosines.size * K * D)
    assert np.mean(cosines**2) == pytest.approx(1 / (K * D), rel=0.05)
  assert len({h.head.kernel.tobytes() for h in heads}) == len(heads)


# The algorithm, by other means.


def whiten(rows: np.ndarray, ridge: float) -> np.ndarray:
  """(M + ridge)^(−1/2), by the singular values of the rows."""
  _, values, directions = np.linalg.svd(rows)
  full = np.zeros(rows.shape[1])
  full[: len(values)] = values**2
  return (directions.T / np.sqrt(full + ridge)) @ directions


def unit_rows(rows: np.ndarray) -> np.ndarray:
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def reference(
  block: Block, rule: WhiteningRule
) -> tuple[np.ndarray, np.ndarray]:
  """The head without noise, by optax and a loss that jax differentiates."""
  u = unit_rows(block.embedding.astype(np.float64))
  mean = u.mean(axis=0) * rule.centres
  matrix = whiten(u - mean, rule.ridge) if rule.whitens else np.eye(len(u.T))
  z = unit_rows((u - mean) @ matrix)

  def loss(kernel, row, label):
    return optax.losses.softmax_cross_entropy_with_integer_labels(
      row @ kernel, label
    )

  optimizer = optax.chain(
    optax.contrib.differentially_private_aggregate(rule.clip_norm, 0.0, key=0),
    optax.sgd(rule.learning_rate, momentum=rule.momentum),
  )

  @functools.partial(jax.jit, compiler_options=SOON)
  def step(kernel, state):
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(kernel, z, block.label)
    updates, state = optimizer.update(gradients, state, kernel)
    return optax.apply_updates(kernel, updates), state

  with jax.enable_x64(True):
    kernel = jax.numpy.zeros((u.shape[1], rule.num_classes), np.float64)
    state = optimizer.init(kernel)
    for _ in range(rule.num_steps):
      kernel, state = step(kernel, state)
    kernel = matrix @ np.asarray(kernel)
  kernel /= np.linalg.norm(kernel, axis=0).max()
  return kernel, -mean @ kernel


@pytest.mark.slow
@pytest.mark.parametrize(
  ("devices", "centres", "whitens"),
  [*((1, *case) for case in CASES), (8, True, True)],
)
def test_without_noise_it_is_the_algorithm(
  monkeypatch, devices, centres, whitens
):
  set_whitens(monkeypatch, whitens)
  rows, steps = rows_of(clusters(), devices), []
  made = trainer(rows, class_moments(rows), lambda: steps.append(1), centres)
  head: Any = made.baseline(plan_of())
  kernel, bias = reference(clusters(), head.mechanism)
  assert len(steps) == head.mechanism.num_steps == 19
  # Rows, the mean and the map are on a grid of 2⁻¹⁴.
  np.testing.assert_allclose(head.head.kernel, kernel, atol=1e-3, rtol=0)
  np.testing.assert_allclose(head.head.bias, bias, atol=1e-3, rtol=0)
  assert np.asarray(head.head.bias).any() == head.head.unit_norm == centres
  logits = unit_rows(clusters().embedding.astype(float)) @ kernel + bias
  hits = np.argmax(logits, axis=1) == clusters().label
  assert hits.mean() > 0.6  # it learns


def final_weights(gradients: list[tuple], rule: WhiteningRule) -> np.ndarray:
  """W by what was released, with momentum written out."""
  noisy = np.array([result for *_, result in gradients]) / rule.num_examples
  left = np.arange(rule.num_steps, 0, -1)  # steps that a gradient still moves
  weight = (1 - rule.momentum**left) / (1 - rule.momentum)
  return -rule.learning_rate * np.tensordot(weight, noisy, 1)


@dataclasses.dataclass
class Transcript:
  """What one head released, call by call."""

  means: list[tuple]
  moments: list[tuple]
  gradients: list[tuple]

  @classmethod
  def watch(cls, monkeypatch: pytest.MonkeyPatch) -> "Transcript":
    return cls(
      means=recorded(monkeypatch, releases, "release_mean"),
      moments=recorded(monkeypatch, releases, "release_moment"),
      gradients=recorded(monkeypatch, whitened, "release_gradient"),
    )

  def scores(
    self, rule: WhiteningRule, unit: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """unit((x̂ − m)·A)·W by hand, and which rows have no near ties.

    m and A are not rounded here, as they are in the head: up to 7e-4 of a row's
    largest score.
    """
    assert len(self.means) == rule.centres
    assert len(self.moments) == rule.whitens
    d = rule.feature_dim
    mean, root = np.zeros(d), np.eye(d)
    if self.means:
      ((*_, mean),) = self.means
    if self.moments:
      ((*_, moment),) = self.moments
      covariance = moment - rule.num_examples * np.outer(mean, mean)
      values, vectors = scipy.linalg.eigh(covariance)
      scales = (np.maximum(values, 0) + rule.ridge) ** -0.5
      root = (vectors * scales) @ np.transpose(vectors)
    mean = mean / max(1.0, float(np.linalg.norm(mean)))
    kernel = final_weights(self.gradients, rule)
    full = unit_rows((unit - mean) @ root) @ kernel
    gaps = np.diff(np.sort(full, axis=1), axis=1).min(axis=1)
    return full, gaps > 1e-3 * np.abs(full).max(axis=1)


def unit_of_any_length(rows: np.ndarray) -> np.ndarray:
  """In float64, of rows as they are stored."""
  wide = rows.astype(np.float64)
  return unit_rows(wide / np.abs(wide).max(axis=1, keepdims=True))


LENGTHS = {
  "float16": (2e-4, 5e3),
  "bfloat16": (1e-30,),
  "float32": (1e-35, 1.0, 1e36),
}


@pytest.mark.parametrize(
  ("epsilon", "centres", "whitens"),
  [(e, *case) for e, case in zip((0.3, 20.0) * 2, CASES, strict=True)],
)
def test_a_head_is_the_whole_pipeline_to_any_row(
  monkeypatch, epsilon, centres, whitens
):
  """Classes in the same order as behind normalise, centre, map, normalise, W.

  Whatever the length of a row and the type that it is stored in.
  """
  set_whitens(monkeypatch, whitens)
  transcript = Transcript.watch(monkeypatch)
  (head,) = released(clusters(), plan_of(epsilon), centres=centres)
  test = unit_rows(random_block(200, D, K, seed=77).embedding.astype(float))
  for dtype, lengths in LENGTHS.items():
    for length in lengths:
      rows = (test * length).astype(DTYPES[dtype])
      full, clear = transcript.scores(head.mechanism, unit_of_any_length(rows))
      found = head.head.logits(jax.numpy.asarray(rows.astype(np.float32)))
      assert clear.mean() > 0.95
      np.testing.assert_array_equal(
        np.argsort(full[clear], axis=1), np.argsort(found, axis=1)[clear]
      )
  # All is of one positive scale: nothing overflows float32.
  assert np.linalg.norm(head.head.kernel, axis=0).max() == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("whitens", [True, False])
def test_the_same_bytes_on_any_devices_in_any_order(monkeypatch, whitens):
  """The noise is of one seed; with float64, and without as on a TPU."""
  set_whitens(monkeypatch, whitens)
  found = set()
  for devices, order, platforms in (
    (1, 0, ("cpu",)),
    (8, 2, ("cpu",)),
    (1, 3, ()),
    (8, 4, ()),
  ):
    monkeypatch.setattr(secret_rows, "FLOAT64_PLATFORMS", platforms)
    block = clusters()[np.random.default_rng(order).permutation(N)]
    (head,) = released(block, plan_of(), devices=devices)
    found.add(head.head.kernel.tobytes() + head.head.bias.tobytes())
  assert len(found) == 1


@pytest.mark.parametrize(
  ("epsilon", "relation"), [(1e-5, REPLACE), (1e5, REPLACE_SPECIAL)]
)
def test_extremes_are_finite(epsilon, relation):
  plan = plan_of(epsilon, neighboring_relation=relation)
  for block in (clusters(), zero_rows(), clusters()[:1]):
    (head,) = released(block, plan)
    assert np.isfinite(head.head.kernel).all()
    assert np.asarray(head.head.kernel).any()
