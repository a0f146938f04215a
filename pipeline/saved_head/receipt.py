"""The privacy statement that travels with every head.

A receipt holds public facts only, and enough of them to recompute everything
it claims: `problems` does that from first principles.
"""

import dataclasses
import importlib.metadata
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT, check_unit_name
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp.accounting import (
  gaussian as accounting,
)
from oneshot_dp.linear_dp.accounting import (
  sampled as sampled_accounting,
)
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE, ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import (
  PoissonSampling,
  SampledGaussian,
  epsilon_of_composition,
)
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import UNCLIPPED, TrainedHead
from oneshot_dp.pipeline.ledger.spending import changed_units
from oneshot_dp.pipeline.saved_head.public_record import (
  ASSUMPTION,
  SETTING,
  PublicRecord,
)

FORMAT_VERSION = 1
_TOLERANCE = 1e-8
"""Relative; both roundings of `accounting` are upward, by 1e-9 each."""
_SOLVER_TOLERANCE = 1e-11
"""Absolute, in epsilon; `accounting` pays for it too."""
_SHA256 = re.compile("[0-9a-f]{64}")

_ASSUMPTIONS = (
  "n (num_examples), the number of classes, their names and the names of the"
  " data set and split are public.",
  "The backbone and its preprocessing do not depend on the private data, and"
  " embed every image by itself.",
)
_ROWS_ARE_UNITS = (
  "One row of the cache is one privacy unit; a person with two rows has twice"
  " the influence."
)
_CLASSES_OF_LABELS = (
  "The number of classes was read off the private labels when the features were"
  " imported; the guarantee holds only if it is public anyway."
)
_NOT_PROTECTED = (
  "The data that the head is evaluated on: its labels are treated as public,"
  " unless the evaluation had a budget of its own (--private-eval).",
  "Any choice (of head, epsilon, data or backbone) made by looking at private"
  " results that are not in the ledger.",
  "The images that the backbone was pretrained on, and any other public set.",
  "The time a run takes, and the memory and disks of the machine it runs on.",
  "The feature cache itself: it holds the private data and must stay private.",
)
_CURVE_DELTAS = ("1e-04", "1e-05", "1e-06", "1e-07", "1e-08", "1e-10", "1e-12")
_SOFTWARE = ("oneshot-dp", "dp-accounting", "jax", "optax", "numpy")


def make_receipt(
  trained: TrainedHead, cache: CacheInfo, *, head_sha256: str
) -> dict[str, Any]:
  """The receipt of one head, as JSON.

  Args:
    trained: the head.
    cache: the private rows, by their public metadata.
    head_sha256: of head.safetensors.

  Returns:
    A JSON object; `private` is False for baselines and seeded noise.
  """
  statement, mechanism = trained.statement, trained.mechanism.as_json()
  plan = trained.plan
  return {
    "format_version": FORMAT_VERSION,
    "private": statement.is_private,
    "privacy": {
      # JSON has no infinity.
      "epsilon": (
        statement.epsilon if math.isfinite(statement.epsilon) else NOT_PRIVATE
      ),
      "delta": statement.delta,
      "neighboring_relation": statement.neighboring_relation.name,
      "privacy_unit": cache.privacy_unit,
      "noise_multiplier": statement.noise_multiplier,
      "sensitivity_steps": statement.sensitivity,
      "noise_sd_steps": statement.noise_sd,
      "noise_source": statement.noise_source,
      "accountant": _accountant(plan.sampling),
      "epsilon_by_relation": _epsilon_by_relation(
        statement.noise_multiplier,
        statement.neighboring_relation,
        statement.delta,
        plan.sampling,
      ),
      "epsilon_by_delta": _epsilon_by_delta(
        statement.noise_multiplier, plan.sampling
      ),
    },
    "composition": {
      "order": plan.order,
      "epsilons": list(plan.epsilons),
      "num_draws": plan.num_draws,
      "noise_multipliers_charged": list(plan.charged_noise_multipliers),
      "composed_epsilon": plan.composed_epsilon,
      "ledger_entry": trained.ledger_entry,
    },
    "mechanism": mechanism,
    "data": {
      "dataset": cache.dataset,
      "dataset_version": cache.dataset_version,
      "split": cache.split,
      "num_examples": cache.num_examples,
      "class_names": list(cache.class_names),
      "num_classes_source": cache.num_classes_source,
      "cache_fingerprint": cache.fingerprint,
      "backbone": dataclasses.asdict(cache.backbone),
      "preprocess": dict(cache.preprocess),
      "views": cache.views,
      "backbone_fingerprint": cache.backbone_fingerprint,
    },
    "training": dict(trained.settings),
    "head_sha256": head_sha256,
    "assumptions": _assumptions(
      cache.num_classes_source,
      cache.privacy_unit,
      mechanism,
      trained.settings,
    ),
    "not_protected": list(_NOT_PROTECTED),
    "software": {p: importlib.metadata.version(p) for p in _SOFTWARE},
  }


def problems(receipt: dict[str, Any]) -> list[str]:
  """Recomputes a receipt's numbers; one line for each that does not hold.

  Args:
    receipt: as read from disk; a missing field is a problem too.

  Returns:
    Empty if everything follows from the noise, the clipping and the data's
    public sizes.
  """
  try:
    return list(_problems(receipt))
  except (KeyError, OverflowError, TypeError, ValueError) as error:
    return [f"receipt.json is incomplete or malformed ({error!r})."]


def _problems(receipt: dict[str, Any]) -> Iterator[str]:
  privacy, mechanism = receipt["privacy"], receipt["mechanism"]
  stated = mechanism_of(mechanism)
  data, training = receipt["data"], receipt["training"]
  relation = NeighboringRelation[privacy["neighboring_relation"]]
  delta, noise_sd = privacy["delta"], privacy["noise_sd_steps"]
  sensitivity = stated.sensitivity(relation)

  def compare(name: str, found: Any, expected: Any) -> Iterator[str]:
    if not same(found, expected):
      yield f"{name} is {found!r} and should be {expected!r}."

  yield from compare(
    "format_version", receipt["format_version"], FORMAT_VERSION
  )
  unit = privacy["privacy_unit"]
  if unit == EXAMPLE_UNIT:
    yield from compare("rows_per_unit", mechanism["rows_per_unit"], 1)
    bound = "row" if stated.is_noisy else UNCLIPPED
    yield from compare("clipped", mechanism["clipped"], bound)
  else:
    check_unit_name(unit)
  yield from compare(
    "num_classes", mechanism["num_classes"], len(data["class_names"])
  )
  for section in (privacy, data):
    for name in mechanism.keys() & section.keys():
      yield from compare(f"mechanism.{name}", mechanism[name], section[name])
  if SETTING in training:
    public = PublicRecord.from_json(training[SETTING])
    yield from compare(
      f"training.{SETTING}", training[SETTING], public.as_json()
    )
    apart = not public.is_of(data["dataset"])
    yield from compare("public rows are of other data", apart, True)
  for name, value in stated.training().items():
    yield from compare(f"training.{name}", training[name], value)
  for name, value in stated.as_json().items():
    yield from compare(f"mechanism.{name}", mechanism[name], value)
  if not stated.is_noisy:
    yield from compare("noise_sd_steps", noise_sd, 0.0)
  sampling = stated.sampling
  yield from compare("accountant", privacy["accountant"], _accountant(sampling))
  yield from compare(
    "assumptions",
    receipt["assumptions"],
    _assumptions(data["num_classes_source"], unit, mechanism, training),
  )
  yield from compare(
    "not_protected", receipt["not_protected"], list(_NOT_PROTECTED)
  )
  yield from compare(
    "sensitivity_steps", privacy["sensitivity_steps"], sensitivity
  )
  yield from compare(
    "noise_multiplier", privacy["noise_multiplier"], noise_sd / sensitivity
  )
  yield from compare(
    "epsilon_by_relation",
    privacy["epsilon_by_relation"],
    _epsilon_by_relation(noise_sd / sensitivity, relation, delta, sampling),
  )
  yield from compare(
    "epsilon_by_delta",
    privacy["epsilon_by_delta"],
    _epsilon_by_delta(noise_sd / sensitivity, sampling),
  )
  private = (
    privacy["noise_source"] == NoiseSource().description and noise_sd > 0
  )
  yield from compare("private", receipt["private"], private)
  if noise_sd > 0:
    spent = _epsilon(noise_sd / sensitivity, delta, sampling)
    if spent > privacy["epsilon"] * (1 + _TOLERANCE) + _SOLVER_TOLERANCE:
      yield (
        f"epsilon is {privacy['epsilon']!r}, but this noise only gives"
        f" {spent!r} at delta={delta!r}."
      )
  else:
    yield from compare("epsilon", privacy["epsilon"], NOT_PRIVATE)
  composition = receipt["composition"]
  paid = bool(_SHA256.fullmatch(str(composition["ledger_entry"])))
  yield from compare("ledger_entry names a charge", paid, True)
  plan = ReleasePlan(
    epsilons=tuple(composition["epsilons"]),
    delta=delta,
    neighboring_relation=relation,
    order=composition["order"],
    num_draws=composition["num_draws"],
    sampling=sampling,
  )
  yield from compare(
    "composed_epsilon", composition["composed_epsilon"], plan.composed_epsilon
  )
  yield from compare(
    "noise_multipliers_charged",
    composition["noise_multipliers_charged"],
    list(plan.charged_noise_multipliers),
  )
  if noise_sd > 0:
    yield from compare(
      f"noise_multiplier of epsilon {privacy['epsilon']!r}",
      privacy["noise_multiplier"],
      plan.noise_multipliers.get(privacy["epsilon"]),
    )


def same(found: Any, expected: Any) -> bool:
  """Equal up to what solvers and libraries may differ by, item by item."""
  match expected:
    case float() if not isinstance(found, str):
      return math.isclose(found, expected, rel_tol=_TOLERANCE)
    case list() if isinstance(found, list) and len(found) == len(expected):
      return all(map(same, found, expected))
    case dict() if isinstance(found, dict) and found.keys() == expected.keys():
      return all(same(found[key], expected[key]) for key in expected)
  return found == expected


def _accountant(sampling: PoissonSampling | None) -> str:
  return sampled_accounting.ACCOUNTANT if sampling else accounting.ACCOUNTANT


def _epsilon(
  noise_multiplier: float, delta: float, sampling: PoissonSampling | None
) -> float:
  if sampling:
    return sampling.epsilon_of(noise_multiplier, delta)
  return accounting.epsilon_of(noise_multiplier, delta)


def _epsilon_by_relation(
  noise_multiplier: float,
  stated: NeighboringRelation,
  delta: float,
  sampling: PoissonSampling | None,
) -> dict[str, float | str]:
  """ε of this noise at δ, whichever data sets are neighbours."""
  if noise_multiplier == 0:
    return {relation.name: NOT_PRIVATE for relation in NeighboringRelation}
  if sampling:
    steps = SampledGaussian(
      noise_multiplier=noise_multiplier, sampling=sampling
    )
    return {
      relation.name: epsilon_of_composition([], [steps], delta, relation)
      for relation in NeighboringRelation
    }
  of_one = noise_multiplier * changed_units(stated)
  return {
    relation.name: accounting.epsilon_of(
      of_one / changed_units(relation), delta
    )
    for relation in NeighboringRelation
  }


def _epsilon_by_delta(
  noise_multiplier: float, sampling: PoissonSampling | None
) -> dict[str, float | str]:
  """The (ε, δ) curve of this noise, at the relation of the receipt."""
  if noise_multiplier == 0:
    return dict.fromkeys(_CURVE_DELTAS, NOT_PRIVATE)
  return {
    delta: _epsilon(noise_multiplier, float(delta), sampling)
    for delta in _CURVE_DELTAS
  }


def _assumptions(
  num_classes_source: str,
  privacy_unit: str,
  mechanism: dict[str, Any],
  training: Mapping[str, Any],
) -> list[str]:
  of_units = _ROWS_ARE_UNITS
  if privacy_unit != EXAMPLE_UNIT:
    of_units = (
      f"All rows of one {privacy_unit} are one privacy unit, by the unit_id"
      " that came with the data, and the guarantee covers all of them together;"
      f" {how_bounded(mechanism['clipped'], mechanism['rows_per_unit'])}."
    )
  of_labels = num_classes_source not in ("class_names", "flag")
  return [
    *_ASSUMPTIONS,
    of_units,
    *([_CLASSES_OF_LABELS] if of_labels else []),
    *([ASSUMPTION] if SETTING in training else []),
  ]


def how_bounded(clipped: str, rows_per_unit: int) -> str:
  """What keeps a unit of many rows from having their influence."""
  if clipped == UNCLIPPED:
    return "nothing bounds their influence"
  if clipped == "unit":
    return "all are summed, and the sum of each is clipped as one vector"
  return f"at most {rows_per_unit} of each are summed, chosen by ids alone"
