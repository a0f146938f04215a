"""Who is private here: the role of each cache of a command, by content.

A cache is private (its rows are trained on, or scored by noisy counts), or a
public test set (its labels are given away by exact accuracies). All pairs are
checked before any work, and the ledger's private rows too, whatever they are
called: no row is both, but for the few that standard benchmarks have twice.

*Privacy*: what is refused says how many rows are shared, to their holder, who
has both; what goes on says "some".
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Literal

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.keys import keys_of
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.pipeline.ledger.entries import Keys, count_shared
from oneshot_dp.pipeline.ledger.ledger import Ledger

Role = Literal["private", "public"]
_FEW = 100
"""One row in so many may be a copy of a private one."""


@dataclasses.dataclass(frozen=True, repr=False)
class CacheRole:
  """A cache in its role; `flag` is what named it."""

  cache: FeatureCache
  role: Role
  flag: str

  @functools.cached_property
  def keys(self) -> Keys:
    """Keys of its rows, which are read for them, once; private."""
    return keys_of(self.cache)

  def __str__(self) -> str:
    return f"{self.flag} {self.cache.name}"


def check_roles(
  casts: Sequence[CacheRole], ledger: Ledger, *, allow_duplicates: bool = False
) -> list[str]:
  """Refuses a row in two roles; returns notes about what goes on.

  InputError: caches of other backbones or classes; a row or unit that is
  private, by a cache or by the ledger, in a public test set.
  """
  for one, other in itertools.combinations(casts, 2):
    info = one.cache.info
    check_same_kind(one, (info.backbone_fingerprint, info.class_names), other)
  notes: list[str] = []
  for public in casts:
    if public.role == "private":
      continue
    if not public.cache.num_rows:
      raise InputError(f"{public} has no rows to score: give another part.")
    info = public.cache.info
    judge = functools.partial(_judge, public, allow_duplicates)
    for private in casts:
      theirs = private.cache.info
      if private.role == "private":
        rows = count_shared(public.keys, private.keys)
        same = (info.dataset, info.unit) == (theirs.dataset, theirs.unit)
        units = count_shared(public.keys, private.keys, ["unit"]) if same else 0
        if theirs.has_units and not same:
          notes.append(
            f"note: whether a {theirs.unit} is in both {private} and {public}"
            " cannot be seen: they do not number them alike"
          )
        notes += judge(rows, units, str(private))
    for dataset, (rows, units) in ledger.shared(public.keys).items():
      # A unit's number means something within one data set alone.
      whose = f"the private rows of {dataset!r} in {ledger.path}"
      notes += judge(rows, units * (dataset == info.dataset), whose)
  return list(dict.fromkeys(notes))


def check_same_kind(
  one: object, kind: tuple[str, Sequence[str]], other: CacheRole
) -> None:
  """Refuses another backbone's fingerprint or other classes than `one` has."""
  info = other.cache.info
  if kind[0] != info.backbone_fingerprint:
    raise InputError(
      f"{one} and {other} are of two backbones: extract both with the same"
      " backbone, weights, layer and preprocessing."
    )
  if said := describe_class_difference(kind[1], info.class_names):
    raise InputError(
      f"{one} and {other} have other classes, or in another order: {said};"
      " make one of them again with the other's --class-names."
    )


def describe_class_difference(one: Sequence[str], other: Sequence[str]) -> str:
  """Where two lists of class names differ, in words; "" if nowhere."""
  if len(one) != len(other):
    return f"{len(one)} of them and {len(other)}"
  pairs = enumerate(zip(one, other, strict=True))
  wrong = [f"class {i} is {a!r} and {b!r}" for i, (a, b) in pairs if a != b]
  more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
  return ", ".join(wrong[:3]) + more


def _judge(
  public: CacheRole, insisted: bool, rows: int, units: int, whose: str
) -> list[str]:
  """Refuses what is shared, or says that it goes on."""
  # Of different rows: many copies of one private row are one in one.
  kinds = (public.keys[k] for k in ("image", "direction") if k in public.keys)
  n = min(map(len, kinds), default=1)
  if units:
    raise InputError(
      f"{units} {public.cache.info.unit}s of {public}, which is to be public,"
      f" are among {whose}: give a test set of others, or score these with"
      " --private-eval."
    )
  if rows * _FEW > n and not (insisted and 2 * rows <= n):
    insist = "" if 2 * rows > n else ", or insist with --allow-duplicates"
    raise InputError(
      f"{rows} of the {n} rows of {public}, which is to be public, are among"
      f" {whose}, and accuracy on them is an exact statistic of private labels:"
      f" leave them out, or score them with --private-eval{insist}."
    )
  if not rows:
    return []
  few = "at most one in a hundred" if rows * _FEW <= n else "up to a half"
  return [
    f"note: some rows of {public}, {few}, are among {whose}; they are scored"
    " all the same"
  ]
