"""Heads that start from public weights."""

import dataclasses
import functools
import hashlib

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.registry import make_trainer, mechanism_of
from oneshot_dp.linear_dp.heads.whitened import releases
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.public_start import PublicStart
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.train_arrays import train_head
from oneshot_dp.linear_dp.trainer import Released, TrainingRows

K, D = 5, 16
CENTRES = np.random.default_rng(0).standard_normal((K, D))
SOME = np.random.default_rng(1).standard_normal((K, D))


def clusters(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  label = rng.integers(0, K, n)
  noise = 1.5 * rng.standard_normal((n, D))
  # What all rows share, which the start knows nothing of.
  return (CENTRES[label] + noise + 1.0).astype(np.float32), label


def rows(n: int, start: np.ndarray | None = None) -> TrainingRows:
  arrays = ArrayRows.of(*clusters(n, 3), num_classes=K)
  public = None
  if start is not None:
    public = PublicStart.of(start, num_classes=K, feature_dim=D)
  return TrainingRows(
    blocks=lambda: [arrays],
    feature_dim=D,
    num_classes=K,
    num_examples=n,
    start=public,
  )


@functools.cache
def accuracy_with(n: int, spoiled: float | None) -> float:
  """Of three heads at ε = 0.1; None is without a start."""
  embedding, label = clusters(n, 1)
  test, answer = clusters(4_000, 2)
  start = None if spoiled is None else CENTRES + spoiled * SOME
  common = {"num_classes": K, "epsilon": 0.1, "delta": 1e-5, "start": start}
  heads = [
    train_head(embedding, label, source=NoiseSource(seed), **common)
    for seed in range(3)
  ]
  return np.mean([head.predict(test) == answer for head in heads])


@pytest.mark.slow
@pytest.mark.parametrize(
  ("n", "spoiled"), [(60, 0.0), (400, 0.3), (60, 1.0), (3_000, 0.3)]
)
def test_a_tenth_of_epsilon_is_not_worse_than_the_start(n, spoiled):
  with_start, without = accuracy_with(n, spoiled), accuracy_with(n, None)
  test, answer = clusters(4_000, 2)
  start = CENTRES + spoiled * SOME
  of_start = ((test @ start.T).argmax(axis=1) == answer).mean()
  assert with_start > of_start - 0.02
  if n < 1_000:  # with more, a poor start may be worth less than none
    assert with_start > without + 0.2


@pytest.mark.parametrize(
  ("whitens", "kept"), [(False, False), (False, True), (True, False)]
)
def test_steps_begin_at_the_start_and_cost_what_the_plan_says(whitens, kept):
  some = 20 * CENTRES if kept else SOME
  given = rows(400, some)
  trainer = make_trainer(given, [HeadConfig(head="whitened")])
  epsilon = 20.0 if whitens else 0.2 if kept else 1.0
  plan = ReleasePlan(epsilons=(epsilon,), delta=1e-5, order="independent")
  released: list[Released] = []
  trainer.read()
  (head,) = trainer.release(
    plan, NoiseSource(5), lambda *_: None, released.append
  )
  precision = sum(each.noise_multiplier**-2 for each in released)
  sigma = head.statement.noise_multiplier
  assert sigma <= precision**-0.5 == pytest.approx(sigma, rel=1e-9)
  names = [each.name for each in released]
  steps = ["gradient sum"] * 19
  assert names == ["second moment"] * whitens + steps + ["gains"]

  first = released[whitens].at
  rule = head.mechanism
  assert isinstance(rule, WhiteningRule)
  norm = np.linalg.norm(first["kernel"], axis=0).mean()
  assert norm == pytest.approx(rule.start_norm)
  kernel = first["kernel"]
  compared = released[-1].at["kernels"]
  np.testing.assert_array_equal(compared[0], kernel)
  np.testing.assert_allclose(compared[1], 0.75 * kernel + 0.25 * compared[2])
  noise_sd = released[-1].noise_multiplier * 2**0.5
  best = np.concatenate([[noise_sd], released[-1].value]).argmax()
  found = compared[best]
  if whitens:
    kernel = first["map"].matrix @ kernel
    found = first["map"].matrix @ found
  np.testing.assert_allclose(head.head.kernel, _unit(found), atol=1e-6)
  assert (best == 0) == kept
  centred = (some - some.mean(axis=0)).T
  scale = np.linalg.norm(centred) / np.linalg.norm(kernel)
  np.testing.assert_allclose(kernel * scale, centred, atol=1e-6)

  section = rule.as_json()
  assert mechanism_of(section) == rule
  assert "public weights (SHA-256 " in rule.in_words({})
  assert given.start is not None
  assert head.settings["start_sha256"] == given.start.sha256
  with pytest.raises(ValueError, match="no head is trained by"):
    mechanism_of(section | {"start_sha256": "private"})
  with pytest.raises(ValueError, match="no head is trained by"):
    mechanism_of(section | {"start_sha256": ""})


def test_each_head_of_a_nested_sweep_is_compared_with_the_one_before(
  monkeypatch,
):
  drawn, release = [], releases.release_gains
  monkeypatch.setattr(
    releases,
    "release_gains",
    lambda secret, noise_sd, source: (
      drawn.append(noise_sd) or release(secret, noise_sd, source)
    ),
  )
  trainer = make_trainer(rows(60, 20 * CENTRES), [HeadConfig(head="whitened")])
  trainer.read()
  epsilons = (0.2, 1.0, 50.0)
  plan = ReleasePlan(epsilons=epsilons, delta=1e-5, order="nested")
  released: list[Released] = []
  heads = list(
    trainer.release(plan, NoiseSource(5), lambda *_: None, released.append)
  )
  ends = [i for i, each in enumerate(released) if each.name == "gains"]
  assert ends[-1] == len(released) - 1
  assert [each.statement.epsilon for each in heads] == [50.0, 1.0, 0.2]
  before = (20 * (CENTRES - CENTRES.mean(axis=0))).T
  kept = []
  for end, head in zip(ends, reversed(heads), strict=True):
    gains = released[end]
    spent = sum(each.noise_multiplier**-2 for each in released[: end + 1])
    sigma = head.statement.noise_multiplier
    assert sigma <= spent**-0.5 == pytest.approx(sigma, rel=1e-9)
    noise_sd = gains.noise_multiplier * 2**0.5
    assert noise_sd <= drawn.pop(0) == pytest.approx(noise_sd, rel=1e-9)
    assert gains.at is not None
    kernels, where = gains.at["kernels"], released[end - 1].at["map"].matrix
    if where is not None:
      kernels = where @ kernels
    np.testing.assert_allclose(_unit(kernels[0]), _unit(before), atol=1e-6)
    best = np.concatenate([[noise_sd], gains.value]).argmax()
    before = np.asarray(head.head.kernel)
    np.testing.assert_allclose(before, _unit(kernels[best]), atol=1e-6)
    kept.append(best == 0)
  assert kept[0]


def _unit(kernel: np.ndarray) -> np.ndarray:
  return kernel / np.linalg.norm(kernel, axis=0).max()


def test_the_receipt_of_arrays_names_them():
  embedding, label = clusters(50, 1)
  head = train_head(
    embedding, label, num_classes=K, epsilon=1.0, delta=1e-5, start=SOME
  )
  digest = hashlib.sha256(SOME.tobytes()).hexdigest()
  assert head.receipt()["training"] == {
    "head": "whitened",
    "start_sha256": digest,
  }


NOT_FINITE = np.where(np.arange(K)[:, None] == 2, np.inf, SOME)


@pytest.mark.parametrize(
  ("start", "why"),
  [
    (SOME[:, 1:], "start is float64 \\(5, 15\\): give numbers of shape"),
    (SOME > 0, "start is bool"),
    (NOT_FINITE, "start of class 2 is not finite"),
    (SOME * (np.arange(K)[:, None] != 3), "start of class 3 is zeros only"),
    (np.ones((K, D)), "start is one vector for all classes"),
  ],
)
def test_what_is_no_start(start, why):
  with pytest.raises(InputError, match=why):
    rows(9, start)


def test_what_cannot_start():
  given = rows(9, SOME)
  with pytest.raises(InputError, match="start is for head whitened, not for"):
    make_trainer(given, [HeadConfig(head="lamb")])
  centred = dataclasses.replace(given, are_centred=True)
  with pytest.raises(InputError, match="not of such that public rows centred"):
    make_trainer(centred, [HeadConfig(head="whitened")]).read()
