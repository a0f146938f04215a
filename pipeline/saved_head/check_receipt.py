"""Whether a receipt's numbers follow from the noise and the public sizes.

A receipt holds public facts only, and enough of them to make it again.
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, get_args

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT, check_unit_name
from oneshot_dp.configs.head_config import HeadConfig, HeadName, ReleaseOrder
from oneshot_dp.linear_dp.accounting.plan import (
  NOT_PRIVATE,
  PrivacyStatement,
  ReleasePlan,
)
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.accounting.sections import (
  composition_section,
  privacy_section,
)
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.heads.multi_step.rule import MultiStepRule
from oneshot_dp.linear_dp.heads.registry import Chosen, mechanism_of
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.trainer import OneStep
from oneshot_dp.linear_dp.trainer import MEANS, ROW, UNCLIPPED, WHOLE, Mechanism
from oneshot_dp.pipeline.saved_head.make_receipt import (
  FIELDS,
  FORMAT_VERSION,
  NOT_PROTECTED,
  SOFTWARE,
  assumptions,
)
from oneshot_dp.pipeline.saved_head.public_record import SETTING, PublicRecord

_MALFORMED = (
  ArithmeticError,
  AttributeError,
  LookupError,
  TypeError,
  ValueError,
)
_TOLERANCE = 1e-8
"""Relative; both roundings of `accounting` are upward, by 1e-9 each."""
_SOLVER_TOLERANCE = 1e-11
"""Absolute, in epsilon: what earlier versions added to theirs."""
_OF_CONVOLUTIONS = 1e-16
"""Absolute, in δ: processors differ in the last bits of random batches' law."""
_SHA256 = re.compile("[0-9a-f]{64}")
_OF_BOTH = ("feature_dim", "num_classes", "rows_per_unit")
"""What a choice says, and what the head was made by that it chose."""
_NEVER_NESTED = (Chosen, MultiStepRule)
"""Whose releases share no noise, so that all of a run add up."""


def problems(receipt: dict[str, Any]) -> list[str]:
  """A line for each number of a receipt that does not follow.

  They must from the noise, the clipping and the data's public sizes. `receipt`
  is as `upgraded`; a missing field is a problem too.
  """
  try:
    return list(_problems(receipt))
  except _MALFORMED as error:
    return [f"receipt.json is incomplete or malformed ({error!r})."]


def _problems(receipt: dict[str, Any]) -> Iterator[str]:
  privacy, mechanism = receipt["privacy"], receipt["mechanism"]
  data, training = receipt["data"], receipt["training"]
  stated = mechanism_of(mechanism)
  unit = privacy["privacy_unit"]
  yield from _compare(receipt, {"format_version": FORMAT_VERSION})
  bound = ROW if unit == EXAMPLE_UNIT else MEANS
  if unit != EXAMPLE_UNIT:
    check_unit_name(unit)
    bound = WHOLE if isinstance(stated, Chosen) else bound
  if bound == ROW or not isinstance(stated, OneStep):
    bound = bound if stated.is_noisy else UNCLIPPED
    yield from _compare(mechanism, {"rows_per_unit": 1, "clipped": bound})
  num_classes = len(data["class_names"])
  yield from _compare(mechanism, {"num_classes": num_classes})
  chosen = mechanism.get("chosen", {})
  for made, of in (mechanism, privacy), (mechanism, data), (chosen, data):
    shared = {name: of[name] for name in made.keys() & of.keys()}
    yield from _compare(made, shared, "mechanism.")
  n = data["num_examples"]
  if not (type(n) is int and n > 0):
    yield f"data.num_examples is {n!r}, which is no number of rows."
  if isinstance(stated, Chosen):
    sizes = {name: mechanism[name] for name in _OF_BOTH if name in chosen}
    yield from _compare(chosen, sizes, "mechanism.chosen.")
  if SETTING in training:
    public = PublicRecord.from_json(training[SETTING])
    yield from _compare(training, {SETTING: public.as_json()}, "training.")
    if public.is_of(data["dataset"]):
      yield "the public rows are of the private data set."
  yield from _compare(training, stated.training(), "training.")
  yield from _compare(mechanism, stated.as_json(), "mechanism.")
  if not stated.is_noisy:
    yield from _compare(privacy, {"noise_sd_steps": 0.0})
  yield from _problems_of_fields(receipt, stated)
  words = assumptions(
    data["num_classes_source"],
    unit,
    mechanism,
    training,
    charged=receipt["composition"]["ledger_entry"] is not None,
  )
  said = {"assumptions": words, "not_protected": list(NOT_PROTECTED)}
  yield from _compare(receipt, said)
  yield from _problems_of_guarantee(receipt, stated)
  yield from _problems_of_composition(receipt, stated)


def _problems_of_fields(
  receipt: dict[str, Any], stated: Mechanism
) -> Iterator[str]:
  """Names what nothing here could check, and no receipt says."""
  data, training = receipt["data"], receipt["training"]
  settings = {"head": training["head"]}  # all that a baseline's has
  if training["head"] in get_args(HeadName):
    settings = HeadConfig(head=training["head"]).settings()
  sections = {
    "": (receipt, FIELDS[""]),
    "data.": (data, FIELDS["data"]),
    "data.backbone.": (data["backbone"], FIELDS["data.backbone"]),
    "software.": (receipt["software"], SOFTWARE),
    "mechanism.": (receipt["mechanism"], stated.as_json()),
    "training.": (training, {*settings, *stated.training(), SETTING}),
    "training.steps.": (training.get("steps", {}), settings.get("steps", {})),
  }
  for prefix, (section, known) in sections.items():
    yield from _unknown(prefix, section, known)


def _unknown(
  prefix: str, section: Iterable[str], known: Container[str]
) -> Iterator[str]:
  for name in section:
    if name not in known:
      yield f"{prefix}{name} is no field of a receipt."


def _problems_of_guarantee(
  receipt: dict[str, Any], stated: Mechanism
) -> Iterator[str]:
  privacy = receipt["privacy"]
  delta, epsilon = privacy["delta"], privacy["epsilon"]
  statement = statement_of(privacy, stated)
  relation = statement.neighboring_relation
  section = privacy_section(
    statement, privacy_unit=privacy["privacy_unit"], sampling=stated.sampling
  )
  yield from _compare(receipt, {"private": statement.is_private})
  curve = section["epsilon_by_delta"]
  known = {
    name: section[name] for name in section if name != "epsilon_by_delta"
  }
  yield from _compare(privacy, known)
  yield from _unknown("privacy.", privacy, section)
  name, said = "epsilon_by_delta.", privacy["epsilon_by_delta"]
  for each, expected in curve.items():
    lost = _OF_CONVOLUTIONS / float(each) if stated.sampling else 0.0
    yield from _compare(said, {each: expected}, name, _TOLERANCE + lost)
  yield from _unknown(name, said, curve)
  spent = section["epsilon_by_relation"][relation.name]
  if spent == NOT_PRIVATE:
    yield from _compare(privacy, {"epsilon": spent})
  elif spent > epsilon * (1 + _TOLERANCE) + _SOLVER_TOLERANCE:
    yield (
      f"epsilon is {epsilon!r}, but this noise only gives {spent!r} at"
      f" delta={delta!r}."
    )


def statement_of(
  privacy: Mapping[str, Any], stated: Mechanism
) -> PrivacyStatement:
  """The guarantee that a section states, of the noise that it states."""
  epsilon = privacy["epsilon"]
  relation = NeighboringRelation[privacy["neighboring_relation"]]
  sensitivity = stated.sensitivity(relation)
  is_from_system = privacy["noise_source"] == NoiseSource().description
  return PrivacyStatement(
    epsilon=math.inf if epsilon == NOT_PRIVATE else epsilon,
    delta=privacy["delta"],
    noise_multiplier=privacy["noise_sd_steps"] / sensitivity,
    sensitivity=sensitivity,
    noise_sd=privacy["noise_sd_steps"],
    neighboring_relation=relation,
    noise_source=privacy["noise_source"],
    is_private=is_from_system and privacy["noise_sd_steps"] > 0,
  )


def _problems_of_composition(
  receipt: dict[str, Any], stated: Mechanism
) -> Iterator[str]:
  privacy, composition = receipt["privacy"], receipt["composition"]
  entry = composition["ledger_entry"]
  if entry is not None and not _SHA256.fullmatch(str(entry)):
    yield "ledger_entry names no charge."
  orders: tuple[str, ...] = get_args(ReleaseOrder)
  if privacy["noise_sd_steps"] > 0 and isinstance(stated, _NEVER_NESTED):
    orders = ("independent",)
  if (order := composition["order"]) not in orders:
    yield f"composition.order is {order!r}, not {' or '.join(orders)}."
    return  # nobody knows how such releases add up
  plan = plan_of(receipt, stated.sampling)
  expected = composition_section(plan)
  yield from _compare(composition, expected)
  known = {*expected, "ledger_entry"}
  yield from _unknown("composition.", composition, known)
  if privacy["noise_sd_steps"] > 0:
    if (epsilon := privacy["epsilon"]) in plan.noise_multipliers:
      sigma = plan.noise_multipliers[epsilon]
      yield from _compare(privacy, {"noise_multiplier": sigma})
    else:
      told = composition["epsilons"]
      yield f"epsilon is {epsilon!r}, and those of the run {told!r}."
    rule = getattr(stated, "chosen", stated)
    if isinstance(rule, WhiteningRule):
      before = plan.noise_before(privacy["epsilon"])
      if not same(rule.before_noise_multiplier, before):
        yield f"the head goes on from one of noise multiplier {before!r}."


def plan_of(
  receipt: dict[str, Any], sampling: PoissonSampling | None
) -> ReleasePlan:
  """The releases that a head is one of."""
  privacy, composition = receipt["privacy"], receipt["composition"]
  return ReleasePlan(
    epsilons=tuple(composition["epsilons"]),
    delta=privacy["delta"],
    neighboring_relation=NeighboringRelation[privacy["neighboring_relation"]],
    order=composition["order"],
    num_draws=composition["num_draws"],
    sampling=sampling,
  )


def _compare(
  section: Mapping[str, Any],
  expected: Mapping[str, Any],
  prefix: str = "",
  tolerance: float = _TOLERANCE,
) -> Iterator[str]:
  for name, value in expected.items():
    if not same(section[name], value, tolerance):
      yield f"{prefix}{name} is {section[name]!r} and should be {value!r}."


def same(found: Any, expected: Any, tolerance: float = _TOLERANCE) -> bool:
  """Equal up to what solvers and libraries may differ by, item by item."""
  match expected:
    case float() if isinstance(found, int | float):
      return math.isclose(found, expected, rel_tol=tolerance)
    case list() if isinstance(found, list) and len(found) == len(expected):
      return all(map(same, found, expected))
    case dict() if isinstance(found, dict) and found.keys() == expected.keys():
      return all(same(found[key], expected[key]) for key in expected)
  return found == expected
