"""`--head least-squares`, from the command line to `verify`."""

import json

import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.heads.least_squares.rule import LeastSquaresRule
from oneshot_dp.linear_dp.statistics.joint_release import Shares
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.head_contract import HeadContract, Kind, PerExample, Receipt
from tests.pipeline import paid
from tests.pipeline.command_line import SWEEP, TRAIN, succeeds
from tests.pipeline.sample_caches import DIM


class LeastSquaresKind(Kind):
  def sigma(self, receipt: Receipt) -> float:
    """By hand, from the parts that the noise is shared among."""
    said, privacy = receipt["mechanism"], receipt["privacy"]
    share = said["moment_share"]
    others = ("class_sum_share", "total_share", "class_count_share")
    assert share + sum(said[key] for key in others) == pytest.approx(
      1, rel=1e-15
    )
    of_moment = 2**20 + (1 + 2**-10) * DIM
    squares = share * of_moment**2 + (1 - share) * 2**40
    replaced = privacy["neighboring_relation"] == "REPLACE_ONE"
    sensitivity = squares**0.5 * (2 if replaced else 1)
    assert privacy["sensitivity_steps"] == pytest.approx(sensitivity, rel=1e-12)
    return privacy["noise_sd_steps"] / sensitivity


class TestLeastSquares(PerExample, HeadContract):
  kind = LeastSquaresKind(
    config=HeadConfig(head="least-squares"),
    flags="--head least-squares",
  )


def test_train(place, capsys, tmp_path):
  out, err = succeeds(capsys, *place(f"{TRAIN} --head least-squares"))
  assert "epsilon = 1 at delta = 1e-05 (REPLACE_SPECIAL)" in out
  assert "noise multiplier 3.7306, noise from os.urandom" in out
  _, head, charged, *_ = err.splitlines()
  assert head.startswith("head: least-squares, as asked; costs epsilon 1 at ")
  assert charged.startswith("charged to ")
  card = (tmp_path / "out/README.md").read_text()
  assert "a linear discriminant, in closed form, from the noisy" in card


def test_releases_can_be_independent(place, capsys, train_cache):
  argv = place(f"{SWEEP} --head least-squares --release independent")
  out, _ = succeeds(capsys, *argv)
  assert "independent releases" in out
  (entry,) = cache_ledger(train_cache, None).entries()
  assert len(paid.gaussians(entry)) == 2


def test_compare_has_it_nested(place, capsys, tmp_path):
  words = "compare --cache {train} --eval-cache {eval} --epsilons 1 4"
  argv = place(f"{words} --delta 1e-5 --heads lamb least-squares --out {{out}}")
  out, _ = succeeds(capsys, *argv)
  assert "(nested: lamb, least-squares)" in out
  found = json.loads((tmp_path / "out/results.json").read_text())
  one, other = found["releases"]
  assert (one["heads"], other["heads"]) == (["lamb"], ["least-squares"])
  sigma = gaussian_mechanism.get_sigma_gaussian(4.0, 1e-5) / 2**0.5
  together = gaussian_mechanism.get_epsilon_gaussian(sigma, 1e-5)
  assert found["composed_epsilon"] == pytest.approx(together, rel=1e-6)
  for folder in (tmp_path / "out/heads").iterdir():
    assert verify_head(folder).problems == ()


def test_what_a_mechanism_says():
  mechanism = LeastSquaresRule(
    num_examples=50_000, feature_dim=192, num_classes=10, noise_sd_steps=3e6
  )
  said = mechanism.as_json()
  assert said["moment_share"] == Shares.of(10).moment
  assert (said["rows_per_unit"], said["clipped"]) == (1, "row")
  assert mechanism.training() == {"head": "least-squares"}
  assert "\n" not in mechanism.in_words({})
  once = mechanism.sensitivity(NeighboringRelation.REPLACE_SPECIAL)
  assert 2**20 < once < 2**20 + 192
  assert mechanism.sensitivity(NeighboringRelation.REPLACE_ONE) == 2 * once
