"""Checks that no row of a command is both private and public, by content.

A cache has one of three roles. It is private: its rows are trained on, or
scored by noisy counts. Or it is a public test set, whose labels exact
accuracies give away. Or it holds public unlabeled rows, from which a head
learns without noise. All pairs are compared before any work, and with the
private rows of the ledger as well, under whatever name they were charged. No
row may be both private and public, except for the few that standard benchmarks
have twice.

*Privacy*: a refusal says about what share of the rows is private, to their
owner, who holds both caches; a note about what is allowed says "some".
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  DISTINCT_IMAGE,
  has_several_owners,
  unit_without_relation,
)
from oneshot_dp.extract.cache.keys import keys_of
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts
from oneshot_dp.pipeline.ledger.entries import Keys, count_shared
from oneshot_dp.pipeline.ledger.ledger import Ledger

Role = Literal["private", "public", "unlabeled"]
_ONE_IN = 100
"""At most one in so many rows of a test set may be a copy of a private one."""
_RECOGNIZED_OF_BFLOAT16 = 0.0002
_RECOGNIZED_OF_FLOAT16 = 0.3
"""The smallest measured share of scaled or newly rounded copies that keep the
key of their direction, where both sides were rounded (PRIVACY.md, section 6).
The number of recognized copies is divided by it. Exact copies are recognized by
another key."""
_DIFFERENCES_SHOWN = 3


@dataclasses.dataclass(frozen=True, repr=False)
class CacheRole:
  """A cache in its role.

  Attributes:
    cache: the cache.
    role: whether its rows are private, a public test set, or public rows whose
      labels are not read.
    flag: the flag that named it, for messages.
  """

  cache: FeatureCache
  role: Role
  flag: str

  @functools.cached_property
  def keys(self) -> Keys:
    """Keys of its rows, which are read once for them; private."""
    return keys_of(self.cache.blocks())

  def __str__(self) -> str:
    return f"{self.flag} {self.cache.name}"


def data_of(cache: FeatureCache, hosts: Hosts = ALONE) -> PrivateDataset:
  """Returns a cache's rows in the form that private sums read.

  Args:
    cache: a cache, or a part of one.
    hosts: the hosts of the run; this one reads its own share of the rows.
  """
  info = cache.info
  has_whole_units = info.has_units and not has_several_owners(info.unit)
  shards = hosts.own_shards(info.num_shards, has_whole_units)
  return PrivateDataset(
    blocks=lambda: cache.blocks(shards),
    n=cache.n,
    feature_dim=info.feature_dim,
    num_classes=info.num_classes,
    unit=info.unit,
    hosts=hosts,
    name=cache.name,
  )


def check_roles(
  roles: Sequence[CacheRole], ledger: Ledger, *, allow_duplicates: bool = False
) -> list[str]:
  """Refuses rows that are private and in a public test set.

  Args:
    roles: all caches of a command.
    ledger: its private rows are compared, too.
    allow_duplicates: accept that up to half of a test set's rows are private.

  Returns:
    Notes about what is shared and allowed, or cannot be compared.

  Raises:
    InputError: caches of different backbones or classes; a row or unit that is
      private, by a cache or by the ledger, in a public test set.
  """
  for one, other in itertools.combinations(roles, 2):
    info = one.cache.info
    class_names = info.class_names
    if "unlabeled" in (one.role, other.role):
      class_names = None
    check_same_kind(one, info.backbone_fingerprint, class_names, other)
  notes: list[str] = []
  for public in roles:
    if public.role == "private":
      continue
    if not public.cache.num_rows:
      raise InputError(f"{public} has no rows: give another cache or part.")
    for private in roles:
      if private.role == "private":
        notes += _compare_caches(public, private, allow_duplicates)
    notes += _compare_with_ledger(public, ledger, allow_duplicates)
  return list(dict.fromkeys(notes))


def check_same_kind(
  name: object,
  fingerprint: str,
  class_names: Sequence[str] | None,
  other: CacheRole,
) -> None:
  """Refuses a cache of another backbone or other classes.

  Args:
    name: what the cache is compared with, for the message.
    fingerprint: of the backbone that is expected.
    class_names: the classes that are expected, in order; None accepts any.
    other: the cache.

  Raises:
    InputError: the backbone or the classes differ; names where.
  """
  info = other.cache.info
  if fingerprint != info.backbone_fingerprint:
    raise InputError(
      f"{name} and {other} come from different backbones: extract both with the"
      " same backbone, weights, layer and preprocessing."
    )
  if class_names is None:
    return
  difference = describe_class_difference(class_names, info.class_names)
  if not difference:
    return
  if sorted(class_names) == sorted(info.class_names):
    raise InputError(
      f"{name} and {other} have their classes in different orders:"
      f" {difference}; leave the test set out, and give it to `oneshot-dp"
      " evaluate` afterwards, which goes by the names of classes."
    )
  raise InputError(
    f"{name} and {other} have different classes: {difference}; extract or"
    " import one of them again with the --class-names of the other, or, where"
    " its data name the classes, rename them there."
  )


def describe_class_difference(one: Sequence[str], other: Sequence[str]) -> str:
  """Says where two lists of class names differ; "" if nowhere.

  Args:
    one: names of class 0, 1, …; public.
    other: the same of another cache or head.

  Returns:
    A clause that follows "different classes: "; it shows the first three.
  """
  if len(one) != len(other):
    return f"{len(one)} of them and {len(other)}"
  differences = []
  for index, (name, other_name) in enumerate(zip(one, other, strict=True)):
    if name != other_name:
      differences.append(f"class {index} is {name!a} and {other_name!a}")
  text = ", ".join(differences[:_DIFFERENCES_SHOWN])
  if len(differences) > _DIFFERENCES_SHOWN:
    text += f" and {len(differences) - _DIFFERENCES_SHOWN} more"
  return text


def _compare_caches(
  public: CacheRole, private: CacheRole, allow_duplicates: bool
) -> list[str]:
  """Compares a test set with a private cache of the same command."""
  info = public.cache.info
  private_info = private.cache.info
  notes = []
  units = 0
  # A unit's number means something within one data set alone. (Distinct images
  # are compared as rows: a test set may have a few twice.)
  if private_info.unit == DISTINCT_IMAGE:
    units = 0
  elif (
    info.dataset == private_info.dataset
    # One table may name several owners of an image, and the other may not.
    and unit_without_relation(info.unit)
    == unit_without_relation(private_info.unit)
  ):
    units = count_shared(public.keys, private.keys, ["unit"])
  elif private_info.has_units:
    notes.append(
      f"note: whether a {private_info.unit} is in both {private} and {public}"
      " cannot be checked: the two do not number them alike"
    )
  # Rows are compared by content, so that a copy under another name, id or label
  # is found; nobody has to say which files belong together.
  shared = _SharedRows(
    seen=count_shared(public.keys, private.keys),
    exact=count_shared(public.keys, private.keys, ["image"]),
    recognized=recognized_share(
      info.embedding_dtype, private_info.embedding_dtype
    ),
  )
  notes += _judge(public, shared, units, str(private), allow_duplicates)
  return notes


def _compare_with_ledger(
  public: CacheRole, ledger: Ledger, allow_duplicates: bool
) -> list[str]:
  """Compares a test set with all rows that the ledger was charged for."""
  notes = []
  for dataset, known in ledger.shared(public.keys).items():
    # In another data set a unit's number may be anybody's.
    info = public.cache.info
    is_known = dataset == info.dataset and info.unit != DISTINCT_IMAGE
    units = known.units if is_known else 0
    # In which precision those rows were stored is not known any more, so that
    # the same is assumed (PRIVACY.md, section 6).
    dtype = info.embedding_dtype
    shared = _SharedRows(
      seen=known.rows,
      exact=known.images,
      recognized=recognized_share(dtype, dtype),
    )
    owner = f"the private rows of {dataset!r} in {ledger.path}"
    notes += _judge(public, shared, units, owner, allow_duplicates)
  return notes


def recognized_share(one_dtype: str, other_dtype: str) -> float:
  """Returns which share of rows matches that differ in their rounding alone.

  It is the least that was measured, for any kind of embedding.

  >>> recognized_share("float32", "float32")
  1.0
  >>> recognized_share("float32", "float16")
  0.3

  Args:
    one_dtype: in which the embeddings of one cache are stored.
    other_dtype: the same of the other cache.

  Returns:
    A share above 0, by which the number of matches that were seen is divided.
  """
  # Keys are of numbers cut into cells: rounding to the eight bits of bfloat16
  # moves one of the numbers of nearly every row into another cell. In equal
  # precisions, too: of two caches one may hold the rows at norm 1.
  if "bfloat16" in (one_dtype, other_dtype):
    return _RECOGNIZED_OF_BFLOAT16
  if "float16" in (one_dtype, other_dtype):
    return _RECOGNIZED_OF_FLOAT16
  return 1.0


class _SharedRows(NamedTuple):
  """Rows of a public cache that are private.

  Attributes:
    seen: how many were recognized.
    exact: how many of these by their images, or all of their numbers. Others
      were scaled or rounded anew.
    recognized: the share of others that are recognized, at least.
  """

  seen: int
  exact: int
  recognized: float

  @property
  def at_most(self) -> int:
    """How many there may be, with those that were not recognized."""
    others = self.seen - self.exact
    return self.exact + math.ceil(others / self.recognized)

  def in_words(self, num_rows: int) -> str:
    """Says about how many of a cache's rows they are.

    Not how many: errors go into logs, and the number follows from private rows.
    """
    share = "more than one in a hundred of the rows"
    if 2 * self.at_most > num_rows:
      share = "more than half of the rows"
    if min(self.at_most, num_rows) == self.seen:
      return share
    return (
      f"perhaps {share}, as many that were scaled or rounded anew are not"
      " recognized,"
    )


def _judge(
  public: CacheRole,
  shared: _SharedRows,
  units: int,
  owner: str,
  allow_duplicates: bool,
) -> list[str]:
  """Refuses shared rows and units, or returns a note that they are allowed."""
  if public.role == "unlabeled":
    return _judge_unlabeled(public, shared, units, owner)
  # One unit is enough to refuse: all its rows are protected together, and
  # accuracy on one of them is a statistic of it.
  if units:
    raise InputError(
      "the test set overlaps the private rows: a"
      f" {public.cache.info.unit} of {public} is among {owner}: give a test"
      " set of others, or score these with --private-eval."
    )
  num_rows = _count_different_rows(public.keys)
  are_few = shared.at_most * _ONE_IN <= num_rows
  are_most = 2 * shared.at_most > num_rows
  if not are_few and (are_most or not allow_duplicates):
    way_out = "leave them out, or score them with --private-eval"
    if not are_most:
      way_out += ", or accept them with --allow-duplicates"
    raise InputError(
      "the test set overlaps the private rows:"
      f" {shared.in_words(num_rows)} of {public} are among {owner}, and"
      f" exact accuracies would give their private labels away: {way_out}."
    )
  if not shared.seen:
    return []
  # Not how many: notes go into logs, and the number follows from private rows.
  share = "at most one in a hundred" if are_few else "up to a half"
  return [
    f"note: some rows of {public}, {share}, are among {owner}; they are scored"
    " all the same"
  ]


def _judge_unlabeled(
  public: CacheRole, shared: _SharedRows, units: int, owner: str
) -> list[str]:
  """Refuses private rows among public ones, from which weights are computed.

  One in a hundred may be a copy, as in a test set: whoever has the public rows
  has it anyway.
  """
  num_rows = _count_different_rows(public.keys)
  if units or shared.at_most * _ONE_IN > num_rows:
    overlap = f"{shared.in_words(num_rows)} of {public} are"
    if units:
      overlap = f"a {public.cache.info.unit} of {public} is"
    raise InputError(
      f"the public rows overlap the private rows: {overlap} among {owner}, and"
      " a head learns from public rows without noise: leave them out."
    )
  if not shared.seen:
    return []
  return [
    f"note: some rows of {public}, at most one in a hundred, are among {owner};"
    " they are treated as public"
  ]


def _count_different_rows(keys: Keys) -> int:
  """Counts different rows, by the kind of key that recognizes the fewest.

  Many copies of one private row are one row of one, and not few of many.
  """
  counts = [len(keys[kind]) for kind in ("image", "direction") if kind in keys]
  return min(counts, default=1)
