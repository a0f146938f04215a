"""A receipt: what is stated of a head, and what follows from it; all public.

    receipt.json = {"format": 1, "stated": {…}, "follows": {…}}

`follows` is computed from `stated`, and again by whoever reads it.
"""

import importlib.metadata
import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2
import msgspec

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.configs.extract_config import NumClassesSource
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import CacheInfo, sha256_of
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.train import TrainedHead

FORMAT, NOT_PRIVATE = 1, "NOT PRIVATE"
PLAIN, UNIT_NORM = "embedding", "embedding at norm 1"
_LIBRARIES = "oneshot-dp", "dp-accounting", "jax", "optax", "numpy"
_NOTHING = {"format": FORMAT, "stated": 0, "follows": 0}
_TOLERANCE = 1e-9  # relative: processors may differ in the last bits of ε
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in r"\`*_{}[]<>#|!&~"})
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] | None


class Releases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """`count` releases one after the other, of one kind and cost."""

  name: str
  shape: tuple[_Count, ...]
  noise_multiplier: Annotated[float, msgspec.Meta(gt=0)]
  count: _Count


class Stated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """What nothing else tells."""

  private: bool  # not of a baseline, nor of noise from a seed
  head: HeadName
  options: dict[str, Any]
  releases: tuple[Releases, ...]
  dataset: str
  split: str
  rows: str
  num_examples: _Count  # n, public; of a part of a cache the mean number
  feature_dim: _Count
  num_classes: _Count
  class_names: tuple[str, ...]
  num_classes_source: NumClassesSource
  privacy_unit: str
  backbone: dict[str, Any]
  views: dict[str, Any] | None
  cache_fingerprint: _Sha256
  backbone_fingerprint: _Sha256
  input: Literal["embedding", "embedding at norm 1"]  # times the kernel
  delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None
  neighboring_relation: str
  accountant: str
  noise_source: str
  charge: _Id  # the random id of what paid in the ledger, if any did
  went_on_from: _Id  # of another head, whose releases are among these
  weights_sha256: _Sha256
  releases_sha256: _Sha256
  libraries: dict[str, str]


def make_receipt(
  trained: TrainedHead, info: CacheInfo, part: Part, **more: str | None
) -> dict[str, Any]:
  """The receipt of a head of a part of a cache, as JSON has it.

  `more`: charge, went_on_from, weights_sha256, releases_sha256.
  """
  runs = itertools.groupby(trained.releases)
  names, both = Stated.__struct_fields__, (trained, info)
  known = [(name, each) for name in names for each in both]
  stated = {n: getattr(each, n) for n, each in known if hasattr(each, n)} | {
    "head": trained.name,
    "releases": [one._asdict() | {"count": len([*of])} for one, of in runs],
    "rows": str(part),
    "num_examples": part.mean_of(info.source_num_examples),
    "privacy_unit": info.unit,
    "cache_fingerprint": info.fingerprint,
    "input": UNIT_NORM if trained.head.unit_norm else PLAIN,
    "neighboring_relation": accounting.NEIGHBORING_RELATION,
    "accountant": accounting.ACCOUNTANT,
    "libraries": {of: importlib.metadata.version(of) for of in _LIBRARIES},
  }
  plain = msgspec.convert(stated | more, Stated)
  plain = msgspec.json.decode(msgspec.json.encode(plain))
  return {"format": FORMAT, "stated": plain, "follows": follows(plain)}


def follows(stated: Mapping[str, Any]) -> dict[str, Any]:
  """What follows from what is stated: the cost of all releases together.

      μ² = Σ count·σ⁻²,   σ = 1/μ,   ε = ε(μ², δ),   ε if replaced = ε(4μ², δ)

  to the safe side; None where there is no noise. Another unit in a unit's place
  changes two units: the same noise is worth half the σ.
  """
  names = "mu_squared", "noise_multiplier", "epsilon", "epsilon_if_replaced"
  if not stated["releases"]:
    return dict.fromkeys(names)
  mu2 = accounting.sum_mu_squared(
    each["count"] / Fraction(each["noise_multiplier"]) ** 2
    for each in stated["releases"]
  )
  epsilons = (
    accounting.epsilon_of(times * mu2, stated["delta"]) for times in (1, 4)
  )
  sigma = mu2**-0.5 * (1 - 2**-50)
  return dict(zip(names, (mu2, sigma, *epsilons), strict=True))


def check_receipt(receipt: Any) -> None:
  """InputError: it is no receipt of this version, or does not follow."""
  try:
    if {**receipt, "stated": 0, "follows": 0} != _NOTHING:
      raise ValueError("it is of another format")
    stated = msgspec.convert(receipt["stated"], Stated)
    for name in (stated.dataset, stated.split, *stated.class_names):
      check_name("a name", name)
    noisy, own = bool(stated.releases), NoiseSource().description
    for name, expected in {
      "num_classes": len(stated.class_names),
      "rows": str(Part.parse(stated.rows)),
      "neighboring_relation": accounting.NEIGHBORING_RELATION,
      "accountant": accounting.ACCOUNTANT,
      "private": noisy and stated.noise_source == own,
    }.items():
      if (said := getattr(stated, name)) != expected:
        raise ValueError(f"{name} is {said!a}, not {expected}")
    if (stated.delta is not None) != noisy:
      raise ValueError("delta is of noisy releases, and of nothing else")
    found, derived = receipt["follows"], follows(receipt["stated"])
    for name in {*found} | {*derived}:
      a, b = found[name], derived[name]
      both = type(a) is type(b) is float
      if not (math.isclose(a, b, rel_tol=_TOLERANCE) if both else a is b):
        raise ValueError(f"{name} is {a!a:.30}, not {b}")
  except (ArithmeticError, LookupError, TypeError, ValueError) as error:
    raise InputError(
      f"the receipt is damaged or was edited: {str(error)!a:.300}."
    ) from error


def card(receipt: dict[str, Any]) -> str:
  """A Markdown page made of a checked receipt and nothing else; public.

  It ends with a digest of the whole receipt, so that a change of anything in
  the one, names and words included, no longer fits the other.
  """
  epsilon, delta = receipt["follows"]["epsilon"], receipt["stated"]["delta"]
  most = right_guesses(epsilon or 0.0, delta or 0.0)
  return filled_in(
    "card.md",
    accounting.format_rounded_up,
    _marked,
    **receipt,
    NOT_PRIVATE=NOT_PRIVATE,
    most=f"{math.ceil(10_000 * most) / 100:g}",
    digest=sha256_of(receipt),
  )


def _marked(text: object) -> str:
  return str(text).translate(_MARKDOWN)


def filled_in(name: str, *filters: Callable[..., str], **values: Any) -> str:
  """A template with these values; filters are named as their functions are."""
  _TEMPLATES.filters |= {f.__name__.removeprefix("_"): f for f in filters}
  return _TEMPLATES.get_template(f"{name}.j2").render(values)


_TEMPLATES = jinja2.Environment(  # it keeps what it has compiled
  loader=jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates"),
  autoescape=lambda name: ".html" in str(name),
  undefined=jinja2.StrictUndefined,
  trim_blocks=True,
  lstrip_blocks=True,
  keep_trailing_newline=True,
)


def right_guesses(epsilon: float, delta: float) -> float:
  """The most often that a guess at even odds can be right: (e^ε+δ)/(e^ε+1).

  >>> round(right_guesses(1.0, 0.0), 3), right_guesses(0.0, 0.0)
  (0.731, 0.5)

  Source: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential
  Privacy", ICML 2015, theorem 2.1.
  """
  # e^ε overflows where the answer is 1 long since.
  return (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
