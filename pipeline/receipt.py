"""A receipt: what is stated of a head, and what follows from it.

    receipt.json = {"format": 1, "stated": {…}, "follows": {…}}

All of it is public. `follows` is computed from `stated`, and computed again by
whoever reads it.
"""

import importlib.metadata
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

import msgspec

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.configs.extract_config import check_unit_name
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.linear_dp.accounting import (
  ACCOUNTANT,
  NEIGHBORING_RELATION,
  added_up,
  epsilon_of,
)
from oneshot_dp.linear_dp.noise_source import NoiseSource

FORMAT = 1
NO_NOISE = "no noise"
PLAIN, UNIT_NORM = "embedding", "embedding at norm 1"
_LIBRARIES = ("oneshot-dp", "dp-accounting", "jax", "optax", "numpy")
_TOLERANCE = 1e-9
"""Relative: processors may differ in the last bits of ε."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class _Closed(
  msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
  """Has these fields, and no others."""


class Releases(_Closed, frozen=True):
  """`count` releases one after the other, of one kind and cost."""

  name: str
  shape: tuple[_Count, ...]
  noise_multiplier: Annotated[float, msgspec.Meta(gt=0)]
  count: _Count


class Stated(_Closed, frozen=True):
  """What nothing else tells.

  Attributes:
    private: False for a baseline, and for noise from a seed.
    num_examples: n, public; of a part of a cache the mean number of its rows.
    input: what the kernel is multiplied with.
    charge: the random id of what paid in the ledger; None where none did.
    went_on_from: the charge of the head that it goes on from, whose releases
      are among these.
  """

  private: bool
  head: HeadName
  options: dict[str, Any]
  releases: tuple[Releases, ...]
  dataset: str
  split: str
  rows: str
  num_examples: _Count
  feature_dim: _Count
  num_classes: _Count
  class_names: tuple[str, ...]
  num_classes_source: Literal[
    "class_names", "flag", "labels (treated as public)"
  ]
  privacy_unit: str
  backbone: dict[str, Any]
  views: dict[str, Any] | None
  cache_fingerprint: _Sha256
  backbone_fingerprint: _Sha256
  input: Literal["embedding", "embedding at norm 1"]
  delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None
  neighboring_relation: str
  accountant: str
  noise_source: str
  charge: _Id | None
  went_on_from: _Id | None
  weights_sha256: _Sha256
  releases_sha256: _Sha256
  libraries: dict[str, str]


def make_receipt(
  trained: Any,
  info: CacheInfo,
  part: Part,
  charge: str | None,
  weights_sha256: str,
  releases_sha256: str,
  went_on_from: str | None = None,
) -> dict[str, Any]:
  """The receipt of a `TrainedHead` on a part of a cache, as JSON has it."""
  stated = Stated(
    private=trained.private,
    head=trained.name,
    options=dict(trained.options),
    releases=tuple(
      Releases(name=name, shape=shape, noise_multiplier=sigma, count=count)
      for (name, shape, sigma), count in _runs(trained.releases)
    ),
    dataset=info.dataset,
    split=info.split,
    rows=str(part),
    num_examples=part.mean_of(info.source_num_examples),
    feature_dim=info.feature_dim,
    num_classes=info.num_classes,
    class_names=info.class_names,
    num_classes_source=info.num_classes_source,
    privacy_unit=info.unit,
    backbone=dict(info.backbone),
    views=None if info.views is None else dict(info.views),
    cache_fingerprint=info.fingerprint,
    backbone_fingerprint=info.backbone_fingerprint,
    input=UNIT_NORM if trained.head.unit_norm else PLAIN,
    delta=trained.delta,
    neighboring_relation=NEIGHBORING_RELATION,
    accountant=ACCOUNTANT,
    noise_source=trained.noise_source,
    charge=charge,
    went_on_from=went_on_from,
    weights_sha256=weights_sha256,
    releases_sha256=releases_sha256,
    libraries={name: importlib.metadata.version(name) for name in _LIBRARIES},
  )
  plain = msgspec.to_builtins(stated)
  plain = msgspec.json.decode(msgspec.json.encode(plain))
  receipt = {"format": FORMAT, "stated": plain, "follows": follows(plain)}
  check_receipt(receipt)
  return receipt


def follows(stated: Mapping[str, Any]) -> dict[str, Any]:
  """What follows from what is stated: the cost of all releases together.

      μ² = Σ count·σ⁻²,   σ = 1/μ,   ε = ε(μ², δ),   ε if replaced = ε(4μ², δ)

  in fractions, rounded up; None where there is no noise. Another unit in a
  unit's place changes two units: the same noise is worth half the σ.
  """
  if not stated["releases"]:
    names = "mu_squared", "noise_multiplier", "epsilon", "epsilon_if_replaced"
    return dict.fromkeys(names)
  costs = (
    each["count"] / Fraction(each["noise_multiplier"]) ** 2
    for each in stated["releases"]
  )
  mu2, delta = added_up(costs), stated["delta"]
  return {
    "mu_squared": mu2,
    "noise_multiplier": mu2**-0.5 * (1 - 2**-50),
    "epsilon": epsilon_of(mu2, delta),
    "epsilon_if_replaced": epsilon_of(4 * mu2, delta),
  }


def check_receipt(receipt: Any) -> None:
  """Derives what follows again, and compares.

  Raises:
    InputError: it is no receipt of this version, or does not follow.
  """
  try:
    if not isinstance(receipt, dict) or receipt.get("format") != FORMAT:
      found = receipt.get("format") if isinstance(receipt, dict) else receipt
      raise ValueError(f"format {found!a:.20} is not {FORMAT}")
    if {*receipt} != {"format", "stated", "follows"}:
      raise ValueError("it has other parts than stated and follows")
    stated = msgspec.convert(receipt["stated"], Stated)
    _check_stated(stated)
    derived, found = follows(receipt["stated"]), receipt["follows"]
    if not isinstance(found, dict) or {*found} != {*derived}:
      raise ValueError("other things follow")
    for name, value in derived.items():
      if not _same(found[name], value):
        raise ValueError(
          f"{name} is {found[name]!a:.30}, and {value!r} follows"
        )
  except (ValueError, ArithmeticError, RecursionError, TypeError) as error:
    raise InputError(
      f"the receipt is damaged or was edited: {str(error)!a:.300}."
    ) from error


def right_guesses(epsilon: float, delta: float) -> float:
  """The most often that a guess at even odds can be right.

      (e^ε + δ) / (e^ε + 1)

  Whoever must tell two neighbouring data sets apart, each as likely as the
  other, knowing everything else and seeing the release.

  >>> round(right_guesses(1.0, 0.0), 3), right_guesses(0.0, 0.0)
  (0.731, 0.5)

  Source: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential
  Privacy", ICML 2015, theorem 2.1.
  """
  # e^ε overflows where the answer is 1 long since.
  return (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))


def _runs(releases: Sequence[Any]) -> list[tuple[Any, int]]:
  """Releases one after the other that are alike, counted."""
  return [(one, len([*run])) for one, run in itertools.groupby(releases)]


def _check_stated(stated: Stated) -> None:
  names = ("dataset", "split", "noise_source", "privacy_unit")
  for name in names:
    check_name(name, getattr(stated, name))
  for name in stated.class_names:
    check_name("class_names", name)
  if stated.privacy_unit != "example":
    check_unit_name(stated.privacy_unit)
  has_noise = bool(stated.releases)
  same = {
    "num_classes": (stated.num_classes, len(stated.class_names)),
    "rows": (stated.rows, str(Part.parse(stated.rows))),
    "neighboring_relation": (stated.neighboring_relation, NEIGHBORING_RELATION),
    "accountant": (stated.accountant, ACCOUNTANT),
    "private": (
      stated.private,
      has_noise and stated.noise_source == NoiseSource().description,
    ),
    "noise_source": (stated.noise_source != NO_NOISE, has_noise),
    "delta": (stated.delta is not None, has_noise),
    "libraries": ({*stated.libraries}, {*_LIBRARIES}),
  }
  for name, (found, expected) in same.items():
    if found != expected:
      raise ValueError(f"{name} is {found!r}, and {expected!r} follows")


def _same(found: Any, expected: Any) -> bool:
  if type(found) is float and type(expected) is float:
    return math.isclose(found, expected, rel_tol=_TOLERANCE)
  return type(found) is type(expected) and found == expected
