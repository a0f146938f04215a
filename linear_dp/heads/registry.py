"""The heads by name: a new head is a file in this folder and a row here."""

from collections.abc import Mapping

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.linear_dp.heads import (
  auto,
  least_squares,
  one_step,
  prototypes,
)
from oneshot_dp.linear_dp.heads.contract import HeadSpec

# Names are in receipts and ledgers, and never change.
HEADS: Mapping[HeadName, HeadSpec] = {
  "auto": auto.SPEC,
  "lamb": one_step.SPECS["lamb"],
  "adam": one_step.SPECS["adam"],
  "momentum": one_step.SPECS["momentum"],
  "prototypes": prototypes.SPEC,
  "least_squares": least_squares.SPEC,
}
