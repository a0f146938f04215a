"""Receipts: what is stated of a head, and what follows from that; all public.

    receipt.json = {"format": 1, "stated": {…}, "follows": {…}}

`follows` is computed from `stated`, and computed again by whoever reads it: an
ε that is written down and does not follow from the noise is refused.
"""

import functools
import importlib.metadata
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

import msgspec

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.configs.extract_config import NumClassesSource, check_unit
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import CacheInfo, check_backbone
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import Release
from oneshot_dp.linear_dp.train import TrainedHead

FORMAT = 1
NOT_PRIVATE = "NOT PRIVATE"
PLAIN: Literal["embedding"] = "embedding"
UNIT_NORM: Literal["embedding at norm 1"] = "embedding at norm 1"
_LIBRARIES = ("oneshot-dp", "dp-accounting", "jax", "optax", "numpy")
_TOLERANCE = 1e-9  # relative: processors may differ in the last bits of ε
_MOST_RELEASES = 2**53
# Beyond any run's: their costs have no common denominator, so that their exact
# sum, and the product of a long shape, would take hours.
_MOST_GROUPS = 2**13
_MOST_AXES = 8
_Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST_RELEASES)]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_ChargeId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] | None
_Delta = Annotated[float, msgspec.Meta(gt=0, lt=1)] | None


class Releases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """`count` releases one after the other, of one kind and noise multiplier."""

  name: str
  shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=_MOST_AXES)]
  noise_multiplier: Annotated[float, msgspec.Meta(gt=0)]
  count: _Count


class Stated(
  msgspec.Struct,
  frozen=True,
  kw_only=True,
  forbid_unknown_fields=True,
  rename={"parent_charge_id": "went_on_from"},
):
  """What a receipt states: all that cannot be computed from anything else.

  Attributes:
    private: whether noise from the system's random bits protects the rows;
      False for a baseline, and for noise from a seed.
    head: the kind of head.
    options: its options.
    releases: everything that was released for it, oldest first.
    dataset: public name of the private data.
    split: public name of its split.
    rows: the part of the cache it was trained on; "" is all of it.
    num_examples: n, public; the mean number where `rows` is a part.
    feature_dim: d.
    num_classes: K.
    class_names: K public names.
    num_classes_source: where K comes from, which must be public.
    privacy_unit: "example", or what a unit of many rows is.
    backbone: what decides an embedding.
    views: what was averaged for each row; None is one center view.
    cache_fingerprint: SHA-256 of the cache's public metadata.
    backbone_fingerprint: SHA-256 of what decides an embedding, and d.
    input: what is multiplied by the kernel.
    delta: δ of the guarantee; None for a baseline.
    neighboring_relation: of the guarantee.
    accountant: what computed ε.
    noise_source: where the random bits are from.
    charge: the random id of the charge in a ledger that paid; None if none did.
    parent_charge_id: the charge of the head that this one continues from, whose
      releases are among these.
    weights_sha256: of head.safetensors.
    releases_sha256: of releases.safetensors.
    libraries: versions of what computed it.
  """

  private: bool
  head: HeadName
  options: dict[str, Any]
  releases: Annotated[
    tuple[Releases, ...], msgspec.Meta(max_length=_MOST_GROUPS)
  ]
  dataset: str
  split: str
  rows: str
  num_examples: _Count
  feature_dim: _Count
  num_classes: _Count
  class_names: tuple[str, ...]
  num_classes_source: NumClassesSource
  privacy_unit: str
  backbone: dict[str, Any]
  views: dict[str, Any] | None
  cache_fingerprint: _Sha256
  backbone_fingerprint: _Sha256
  input: Literal["embedding", "embedding at norm 1"]
  delta: _Delta
  neighboring_relation: str
  accountant: str
  noise_source: str
  charge: _ChargeId
  parent_charge_id: _ChargeId
  weights_sha256: _Sha256
  releases_sha256: _Sha256
  libraries: dict[str, str]


class Follows(msgspec.Struct, frozen=True, kw_only=True):
  """The cost that follows from the stated releases; None without noise.

  Attributes:
    mu_squared: μ² = Σ σ⁻², rounded up.
    noise_multiplier: σ = 1/μ of all releases together, rounded down.
    epsilon: ε at the stated δ, rounded up.
    epsilon_if_replaced: the same where a unit is exchanged for another.
  """

  mu_squared: float | None = None
  noise_multiplier: float | None = None
  epsilon: float | None = None
  epsilon_if_replaced: float | None = None


def make_receipt(
  trained: TrainedHead,
  info: CacheInfo,
  part: Part,
  *,
  charge_id: str | None,
  parent_charge_id: str | None,
  weights_sha256: str,
  releases_sha256: str,
) -> dict[str, Any]:
  """Writes the receipt of a head that was trained on a part of a cache.

  Args:
    trained: the head.
    info: the cache's metadata, of which the public ones are stated.
    part: the part of the cache.
    charge_id: the charge that paid for it; None if no ledger was charged.
    parent_charge_id: the charge of the head that it continues from, if any.
    weights_sha256: of head.safetensors.
    releases_sha256: of releases.safetensors.

  Returns:
    The receipt, as JSON has it.
  """
  is_unit_norm = trained.head.unit_norm
  stated = Stated(
    private=trained.private,
    head=trained.name,
    options=dict(trained.options),
    releases=_count_releases(trained.releases),
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
    input=UNIT_NORM if is_unit_norm else PLAIN,
    delta=trained.delta,
    neighboring_relation=accounting.NEIGHBORING_RELATION,
    accountant=accounting.ACCOUNTANT,
    noise_source=trained.noise_source,
    charge=charge_id,
    parent_charge_id=parent_charge_id,
    weights_sha256=weights_sha256,
    releases_sha256=releases_sha256,
    libraries={name: _version_of(name) for name in _LIBRARIES},
  )
  # `follows` is derived from what a reader of the file will see, and not from
  # the objects: both sides compute from the same decimal digits.
  as_json = msgspec.json.encode(stated)
  # The bounds of fields are checked when they are read: read it back.
  msgspec.json.decode(as_json, type=Stated)
  plain = msgspec.json.decode(as_json)
  return {"format": FORMAT, "stated": plain, "follows": derive(plain)}


@functools.cache
def _version_of(library: str) -> str:
  """Looks a library's version up once, which takes a millisecond."""
  return importlib.metadata.version(library)


def derive(stated: Mapping[str, Any]) -> dict[str, Any]:
  """Computes the cost of all stated releases together.

      μ² = Σ count·σ⁻²,   σ = 1/μ,   ε = ε(μ², δ),   ε if replaced = ε(4μ², δ)

  each rounded to the safe side. To put another unit in a unit's place changes
  two units, so the same noise is worth half the σ.

  Args:
    stated: "releases" and "delta" of a receipt, as JSON has them.

  Returns:
    The fields of `Follows`.
  """
  # A baseline: without noise there is no ε, and not an ε of 0.
  if not stated["releases"]:
    return msgspec.structs.asdict(Follows())
  # From what was released, not from what was asked for: noise is rounded up, so
  # ε comes out a little below the one that was charged, and never above.
  mu_squared = accounting.sum_mu_squared(
    release["count"] / Fraction(release["noise_multiplier"]) ** 2
    for release in stated["releases"]
  )
  delta = stated["delta"]
  follows = Follows(
    mu_squared=mu_squared,
    noise_multiplier=mu_squared**-0.5 * (1 - 2**-50),
    epsilon=accounting.epsilon_of(mu_squared, delta),
    epsilon_if_replaced=accounting.epsilon_of(4 * mu_squared, delta),
  )
  return msgspec.structs.asdict(follows)


def check_receipt(receipt: Any) -> None:
  """Checks that a receipt is of this version, and that its numbers follow.

  Raises:
    InputError: it is not, or one of them does not.
  """
  try:
    _check_format(receipt)
    stated = msgspec.convert(receipt["stated"], Stated)
    _check_stated(stated)
    _check_follows(receipt["follows"], derive(receipt["stated"]))
  except (ArithmeticError, LookupError, TypeError, ValueError) as error:
    raise InputError(
      f"the receipt is damaged or was edited: {str(error)!a:.300}."
    ) from error


def _count_releases(releases: Sequence[Release]) -> tuple[Releases, ...]:
  """Consecutive releases of one kind and noise multiplier, counted."""
  # A head of `auto` releases dozens of gradients alike. Order is kept: only
  # neighbors are put together.
  counted = []
  for alike, repeats in itertools.groupby(releases, _without_count):
    counted.append(
      Releases(
        name=alike.name,
        shape=alike.shape,
        noise_multiplier=alike.noise_multiplier,
        count=sum(release.count for release in repeats),
      )
    )
  return tuple(counted)


def _without_count(release: Release) -> Release:
  return release._replace(count=1)


def _check_format(receipt: Any) -> None:
  """Refuses another version, and any key beside the three."""
  without_values = {**receipt, "stated": None, "follows": None}
  if without_values != {"format": FORMAT, "stated": None, "follows": None}:
    raise ValueError("it is of another format")


def _check_stated(stated: Stated) -> None:
  """Refuses names that are none, and statements that contradict each other."""
  # All that a card or a page shows in the words of a receipt: with lines of its
  # own it could state another epsilon there.
  check_unit(stated.privacy_unit)
  names = [stated.dataset, stated.split, *stated.class_names]
  names += [stated.noise_source, *stated.libraries, *stated.libraries.values()]
  for name in names:
    check_name("a name", name)
  check_backbone(stated.backbone)
  # What follows from the rest is compared with it, so that an edit of one field
  # shows: a baseline, say, cannot be called private.
  has_noise = bool(stated.releases)
  uses_system_noise = stated.noise_source == NoiseSource().description
  _check_equal("num_classes", stated.num_classes, len(stated.class_names))
  _check_equal("rows", stated.rows, str(Part.parse(stated.rows)))
  _check_equal(
    "neighboring_relation",
    stated.neighboring_relation,
    accounting.NEIGHBORING_RELATION,
  )
  _check_equal("accountant", stated.accountant, accounting.ACCOUNTANT)
  _check_equal("private", stated.private, has_noise and uses_system_noise)
  if (stated.delta is not None) != has_noise:
    raise ValueError("delta belongs to noisy releases, and to nothing else")


def _check_equal(name: str, value: object, expected: object) -> None:
  if value != expected:
    raise ValueError(f"{name} is {value!a}, not {expected}")


def _check_follows(
  written: Mapping[str, Any], derived: Mapping[str, Any]
) -> None:
  """Refuses written numbers that are not the derived ones.

  Types count: 1 is not 1.0 here, and True is not 1.
  """
  # Names of both sides: a field that is missing is as wrong as one too many.
  # Sorted, so that the same file is refused in the same words each time.
  for name in sorted({*written, *derived}):
    value = written[name]
    expected = derived[name]
    if isinstance(value, float) and isinstance(expected, float):
      is_close = math.isclose(value, expected, rel_tol=_TOLERANCE)
    else:
      is_close = value is expected
    if not is_close:
      raise ValueError(f"{name} is {value!a:.30}, not {expected}")
