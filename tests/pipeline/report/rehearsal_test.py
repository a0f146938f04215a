"""Whatever a sweep can be asked for is shown, before it is charged."""

import itertools
import math
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import WHOLE, Part
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline.cli.program import main
from oneshot_dp.pipeline.report import accuracy_plot
from oneshot_dp.pipeline.report.rehearsal import (
  PlannedHead,
  PlannedRun,
  rehearse_report,
)
from tests.pipeline.report.sample_runs import NOISY, PUBLIC
from tests.pipeline.sample_heads import sample_info


def planned(
  kinds: Sequence[HeadName] = ("auto",),
  epsilons=(1.0,),
  draws=1,
  baseline=False,
  evaluation=PUBLIC,
  part=WHOLE,
  **info,
):
  """A run of these heads."""
  heads = [
    PlannedHead(kind, epsilon, draw)
    for kind, draw, epsilon in itertools.product(kinds, range(draws), epsilons)
  ]
  if baseline:
    heads += [PlannedHead(kind, math.inf, 0) for kind in kinds]
  return PlannedRun(
    heads=heads,
    info=sample_info(**info),
    part=part,
    delta=1e-5,
    private=True,
    noise_source=NoiseSource().description,
    evaluation=evaluation,
    how="labels treated as public",
  )


@pytest.mark.slow
def test_all_kinds_of_head_with_baselines_are_shown():
  kinds = get_args(HeadName)
  assert set(kinds) == set(HEADS)

  rehearse_report(planned(kinds, (0.5, 1.0, 8.0), draws=2, baseline=True))


def test_a_picture_that_cannot_be_drawn_is_found(monkeypatch):
  monkeypatch.setattr(accuracy_plot, "_MARKERS", ())

  with pytest.raises(InputError):
    rehearse_report(planned())


@pytest.mark.slow
def test_a_name_in_letters_that_the_font_lacks_is_shown():
  rehearse_report(planned(dataset="猫と犬", class_names=("猫", "犬", "鼠")))


@pytest.mark.long
@settings(
  max_examples=12,
  deadline=None,
  phases=[Phase.explicit, Phase.generate],  # to shrink takes minutes
  suppress_health_check=[HealthCheck.too_slow],
)
@given(
  kinds=st.lists(
    st.sampled_from(sorted(HEADS)), min_size=1, max_size=6, unique=True
  ),
  epsilons=st.lists(
    st.floats(0.01, 20, allow_nan=False), min_size=1, max_size=6, unique=True
  ),
  draws=st.integers(1, 3),
  baseline=st.booleans(),
  evaluation=st.sampled_from([PUBLIC, NOISY]),
  num_classes=st.sampled_from([2, 5, 6, 12, 13, 61, 100, 101]),
  name=st.text(
    st.characters(exclude_categories=["C", "Zl", "Zp"]),
    min_size=1,
    max_size=80,
  ).filter(str.strip),
  part=st.sampled_from([WHOLE, Part.parse("[:80%]")]),
)
def test_every_run_that_can_be_asked_for_is_shown(
  kinds, epsilons, draws, baseline, evaluation, num_classes, name, part
):
  rehearse_report(
    planned(
      kinds,
      epsilons,
      draws,
      baseline,
      evaluation,
      part,
      dataset=name,
      split=name,
      class_names=tuple(f"{name} {i}"[-90:] for i in range(num_classes)),
    )
  )


def test_sweep_that_cannot_be_drawn_charges_nothing(
  place, ledger_file, monkeypatch
):
  """A picture that fails after the charge would cost a budget each time."""
  monkeypatch.setattr(accuracy_plot, "_MARKERS", ())

  status = main(place("SWEEP --epsilons 1 --out results"))

  assert status == 2
  assert not ledger_file.exists()
