"""Every head has one row, which all doors and receipts go by."""

from typing import get_args

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, MethodName
from oneshot_dp.linear_dp.heads.registry import (
  KINDS,
  METHODS,
  head_kind,
  make_trainer,
)
from oneshot_dp.linear_dp.heads.whitened.training import WhitenedTrainer
from oneshot_dp.linear_dp.trainer import Mechanism, Trainer, TrainingRows

ROWS = TrainingRows(blocks=list, feature_dim=5, num_classes=3, num_examples=7)


def test_the_rows_are_the_names_that_may_be_asked_for():
  assert sorted(METHODS) == sorted(get_args(MethodName))
  assert len({kind.mechanism.KIND for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_makes_a_trainer(method):
  trainer = make_trainer(ROWS, [HeadConfig(head=method)])
  assert isinstance(trainer, Trainer)
  assert issubclass(head_kind(method).mechanism, Mechanism)
  assert trainer.facts == {"rows_per_unit": 1, "clipped": "row"}


@pytest.mark.parametrize("method", ["svm", "auto", "logistic", ""])
def test_another_name(method):
  with pytest.raises(InputError, match="must be one of lamb, adam, momentum,"):
    head_kind(method)


@pytest.mark.parametrize("centres", [False, True])
def test_what_public_rows_centred_is_not_centred_again(centres):
  rows = TrainingRows(
    blocks=list,
    feature_dim=5,
    num_classes=3,
    num_examples=7,
    are_centred=not centres,
  )
  trainer = make_trainer(rows, [HeadConfig(head="whitened")])
  assert isinstance(trainer, WhitenedTrainer)
  assert trainer.rule(0.5).centres is centres
