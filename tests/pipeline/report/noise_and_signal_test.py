import functools

import numpy as np
import pytest

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.one_step.trainer import OneStep
from oneshot_dp.pipeline.report.noise_and_signal import sums_of
from oneshot_dp.pipeline.report.public_answers import ask
from oneshot_dp.pipeline.report.run_record import read_run
from oneshot_dp.pipeline.training.train_heads import cache_trainer, make_plan
from tests.pipeline.report.conftest import swept
from tests.pipeline.sample_caches import CLASSES


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
  """A sweep of one head with these settings, made once."""
  folder = tmp_path_factory.mktemp("runs")

  @functools.cache
  def make(**settings):
    out = folder / f"run-{len(list(folder.glob('run-*')))}"
    config = HeadConfig(**settings)
    run = swept(
      folder,
      epsilons=(2.0,),
      num_draws=1,
      baseline=False,
      config=config,
      out=out,
    )
    return read_run(run)

  return make


def rows_of(run):
  return open_cache(run.directory.parent / "test")


def estimate(run):
  """What the page draws: from the test rows and the receipt."""
  head = run.head(run.noisy[0])
  sums = sums_of(head.receipt)
  assert not isinstance(sums, str)
  answers = ask([head.head], rows_of(run), sums.clipped)
  assert answers.class_sums is not None
  sd = head.receipt["privacy"]["noise_sd_steps"]
  return sums.compared(
    answers.class_sums, method="lamb", scale=180 / 80, noise_sds={2.0: sd}
  )


@pytest.mark.parametrize("bias", [False, True])
def test_the_signal_is_what_the_rows_would_add(run_of, bias):
  """The test rows' own: the exact sum of a head without noise."""
  run = run_of(train_bias=bias, l2_clip_norm=0.7)
  found = estimate(run)
  test = rows_of(run)
  trainer = cache_trainer(
    test, [HeadConfig(train_bias=bias, l2_clip_norm=0.7, head="momentum")]
  )
  trainer.read()
  plan = make_plan((2.0,), PrivacyConfig(delta=1e-5))
  exact = trainer.baseline(plan)
  # Momentum's step is the mean gradient, upside down.
  gradient = -exact.head.kernel * 80
  if bias:
    moved = exact.head.bias - (-10.0)
    gradient = np.concatenate([gradient, -moved[None] * 80])
  assert isinstance(exact.mechanism, OneStep)
  residual = exact.mechanism.grid.residual_norm
  in_rows = gradient.T * residual / 0.7 * 180 / 80
  np.testing.assert_allclose(
    found.signal, np.linalg.norm(in_rows, axis=1), rtol=2e-3
  )
  np.testing.assert_allclose(
    found.apart,
    np.linalg.norm(in_rows - in_rows.mean(axis=0), axis=1),
    rtol=2e-3,
  )


@pytest.mark.parametrize(
  "settings",
  [{"train_bias": False, "l2_clip_norm": 0.7}, {"head": "least-squares"}],
)
def test_noise_is_that_of_the_receipt(run_of, settings):
  run = run_of(**settings)
  receipt = run.head(run.noisy[0]).receipt
  found = estimate(run)
  rng = np.random.default_rng(0)
  sd = receipt["privacy"]["noise_sd_steps"] / 2**20
  sd /= receipt["mechanism"].get("class_sum_share", 1.0) ** 0.5
  drawn = sd * rng.standard_normal((4000, 3))
  expected = np.sqrt((drawn**2).sum(axis=1).mean())
  assert found.noise[2.0] == pytest.approx(expected, rel=0.05)


def test_signal_of_least_squares_is_of_rows_at_norm_one(run_of):
  run = run_of(head="least-squares")
  found = estimate(run)
  expected = np.zeros((CLASSES, 3))
  for block in rows_of(run).blocks():
    rows = block.embedding.astype(float)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.add.at(expected, block.label, rows * 180 / 80)
  np.testing.assert_allclose(
    found.signal, np.linalg.norm(expected, axis=1), rtol=1e-3
  )


def test_why_nothing_can_be_said(run_of):
  run = run_of(train_bias=False, l2_clip_norm=0.7)
  receipt = run.head(run.noisy[0]).receipt
  assert not isinstance(sums_of(receipt), str)
  rule = WhiteningRule(
    num_examples=180, feature_dim=3, num_classes=4, noise_multiplier=1.0
  )
  for section, change, why in (
    ("mechanism", {"clipped": "unit"}, "how many those are is private"),
    ("mechanism", {"rows_per_unit": 2}, "how many those are is private"),
    ("training", {"public_statistics": {}}, "mapped by public statistics"),
    ("mechanism", rule.as_json(), "at every step"),
  ):
    changed = receipt | {section: receipt[section] | change}
    assert why in str(sums_of(changed))
