"""Private rows as they are read, and what is public about them."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import NO_OWNER, has_several_owners
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts

UNIT_WEIGHT = 2**20
"""W, the weight of a privacy unit, unless n is so large that int64 needs a
smaller one."""
_MAX_ROWS = 10**10

Block = Mapping[str, np.ndarray]
"""Columns embedding [r, d], embedding_norm, label, example_id [r] and, where a
privacy unit may have many rows, unit_id [r]; where a row may belong to several
units, unit_id [r, m] and weight_divisor [r]."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrivateDataset:
  """Private rows, and what is public about them.

  Attributes:
    blocks: starts a pass over this host's rows, in any order and any block
      size, in arrays that nobody changes afterwards.
    n: the public number of rows; of a part of a cache, its expected number.
    feature_dim: d, the width of an embedding.
    num_classes: K.
    unit: what the privacy unit is; other than "example", rows have a unit_id.
    hosts: the hosts that have a part of the rows each.
    name: what error messages call the rows.
  """

  blocks: Callable[[], Iterable[Block]]
  n: int
  feature_dim: int
  num_classes: int
  unit: str = "example"
  hosts: Hosts = ALONE
  name: str = "the rows"

  def __post_init__(self):
    # W shrinks as n grows (see `weight`): with more rows than this, too little
    # would be left of it to share among the rows of a unit.
    if not 1 <= self.n <= _MAX_ROWS:
      raise InputError(
        f"n={self.n} rows: sums are of 1 to {_MAX_ROWS:.0e} rows."
      )

  @property
  def has_units(self) -> bool:
    """Whether a privacy unit may have several rows."""
    return self.unit != "example"

  @property
  def has_several_owners(self) -> bool:
    """Whether a row may belong to several privacy units."""
    return has_several_owners(self.unit)

  @property
  def has_whole_units(self) -> bool:
    """Whether units of many rows share no row, so that each can lie whole."""
    return self.has_units and not self.has_several_owners

  def whole_units(self, block: Block) -> Int64[np.ndarray, " r"]:
    """The unit of each row of a block; rows that units share stand alone."""
    return block["unit_id" if self.has_whole_units else "example_id"]

  def row_weights(self, block: Block) -> Int32[np.ndarray, " r"]:
    """Returns the weight of each row of a block, unless the row is of zeros.

    It is W. Where a row may belong to several units, it is ⌊W/k⌋, with k the
    number of rows of the largest unit that owns the row.

    Formal guarantees: the weights of any unit's rows then add up to at most W,
    since each row of a unit with m rows is divided by k ≥ m. Weights follow
    from the table of who owns which row, and from nothing else.
    """
    if not self.has_several_owners:
      return np.full(len(block["label"]), self.weight, np.int32)
    return (self.weight // block["weight_divisor"]).astype(np.int32)

  @property
  def weight(self) -> int:
    """W: a power of two, small enough that n·W·R is at most 2⁶¹."""
    return min(UNIT_WEIGHT, 2**47 >> (self.n - 1).bit_length())

  def checked_blocks(self) -> Iterator[Block]:
    """Yields the blocks of one pass, each checked.

    Raises:
      InputError: a unit_id is missing or unexpected, or a label is outside
        [0, K). At the end of the pass: an example_id came twice, the rows of an
        owner weigh more than W, or there are many more than n rows. Messages
        hold no private values.
    """
    # Ids are collected over the pass: two rows with one id may be one image
    # that was read twice, and would then count twice, with twice the
    # sensitivity.
    ids_of_blocks = [np.empty(0, np.int64)]
    owners = _OwnerWeights()
    for block in self.blocks():
      self._check_block(block)
      ids_of_blocks.append(np.array(block["example_id"], np.int64))
      if self.has_several_owners:
        owners.add(block["unit_id"], self.row_weights(block))
      yield block
    self._check_ids_and_weights(
      np.concatenate(ids_of_blocks), owners.heaviest()
    )

  def check_across_hosts(self) -> None:
    """Checks what no host can see alone: rows that two hosts have; collective.

    It takes one more pass over this host's rows. Where one host reads all rows,
    each pass of `checked_blocks` has compared them, and this does nothing.

    Raises:
      InputError: on all hosts: an example_id comes twice, the rows of an owner
        weigh more than W, or there are many more than n rows.
    """
    if self.hosts.count == 1 or self.has_whole_units:
      return
    own_ids, own_owners = self.hosts.raise_together(self._ids_and_owners)
    all_ids = self.hosts.gathered(own_ids)
    # An owner's rows may lie on several hosts, each of which knows what its own
    # add up to.
    owner, weight = own_owners.totals()
    owners = _OwnerWeights()
    owners.append(self.hosts.gathered(owner), self.hosts.gathered(weight))
    self._check_ids_and_weights(all_ids, owners.heaviest())

  def _ids_and_owners(
    self,
  ) -> tuple[Int64[np.ndarray, " r"], "_OwnerWeights"]:
    """The ids of this host's rows, and the weights of their owners."""
    ids_of_blocks = [np.empty(0, np.int64)]
    owners = _OwnerWeights()
    for block in self.blocks():
      ids_of_blocks.append(np.array(block["example_id"], np.int64))
      if self.has_several_owners:
        owners.add(block["unit_id"], self.row_weights(block))
    return np.concatenate(ids_of_blocks), owners

  def _check_ids_and_weights(
    self, ids: Int64[np.ndarray, " r"], heaviest_owner: int
  ) -> None:
    """Refuses rows that come twice, weigh too much, or are too many."""
    if heaviest_owner > self.weight:
      raise InputError(
        f"{self.name}: the rows of one of their owners weigh more than a unit"
        " may: make the cache again."
      )
    ids.sort()
    is_repeated = np.append(ids[1:] == ids[:-1], False)
    if is_repeated.any():
      self.refuse(ids, is_repeated, "it comes more than once")
    # The weight leaves room in int64 for so many rows and no more. `n` is
    # public, and for a part of a cache only the expected number; the true one
    # is private, so it is not in the message.
    if len(ids) > 2 * self.n + UNIT_WEIGHT:
      raise InputError(
        f"{self.name}: there are many more than the expected {self.n}."
      )

  def refuse_equal_rows(self) -> None:
    """Refuses to learn from this host's rows if all of them are the same.

    One row alone, and rows of zeros, are not looked at.

    Raises:
      InputError: there are two rows or more, and all are equal.
    """
    # A constant is what a broken backbone makes of every image. A budget would
    # be spent on it to learn how many rows each class has, and no more. Rows
    # that differ are found in the first block, where nothing is broken.
    first = None
    num_rows = 0
    for block in self.blocks():
      rows = block["embedding"][block["embedding_norm"] > 0]
      if len(rows) == 0:
        continue
      if first is None:
        first = rows[0]
      if (rows != first).any():
        return
      num_rows += len(rows)
    if num_rows > 1:
      raise InputError(
        f"{self.name}: all embeddings are the same, so nothing can be learned:"
        " look for what went wrong in the backbone or the import."
      )

  def _check_block(self, block: Block) -> None:
    if self.has_units != ("unit_id" in block):
      has = "no" if self.has_units else "a"
      raise InputError(
        f"The rows have {has} unit_id, but the privacy unit is {self.unit!r}."
      )
    if self.has_several_owners and not block["weight_divisor"].all():
      is_zero = block["weight_divisor"] == 0
      self.refuse(block["example_id"], is_zero, "its weight_divisor is 0")
    if self.has_several_owners:
      is_nobodys = (block["unit_id"] == NO_OWNER).all(1)
      if is_nobodys.any():
        self.refuse(block["example_id"], is_nobodys, "it has no owner")
    label = block["label"]
    # A scatter would silently drop such a row, or count it for another class.
    is_outside = (label < 0) | (label >= self.num_classes)
    if is_outside.any():
      reason = f"its label is outside [0, {self.num_classes})"
      self.refuse(block["example_id"], is_outside, reason)

  def refuse(
    self, ids: np.ndarray, is_bad: Bool[np.ndarray, " r"], reason: str
  ) -> NoReturn:
    """Raises an InputError that names the first bad row by its id alone.

    An id is a row's place in its split, or what the owner of the rows gave it.
    Labels and embeddings are private, and stay out of the message.

    Args:
      ids: example_ids, int64 [r].
      is_bad: which of these rows are refused; one at least.
      reason: what is wrong, as words that follow "example_id=…: ". It may name
        public numbers only.

    Raises:
      InputError: always.
    """
    raise InputError(
      f"{self.name}: example_id={ids[is_bad.argmax()]}: {reason}. Run"
      " `oneshot-dp verify` on the cache, then make it again."
    )


class _OwnerWeights:
  """Adds up the weights of the rows of each owner, over one pass."""

  def __init__(self):
    self._owners = [np.empty(0, np.int64)]
    self._weights = [np.empty(0, np.int64)]

  def add(
    self, unit_id: Int64[np.ndarray, "r m"], weight: Int32[np.ndarray, " r"]
  ) -> None:
    """Adds rows, each with the same weight for all of its owners."""
    is_owner = unit_id != NO_OWNER
    self.append(unit_id[is_owner], np.repeat(weight, is_owner.sum(axis=1)))

  def append(
    self, owner: Int64[np.ndarray, " u"], weight: Integer[np.ndarray, " u"]
  ) -> None:
    """Adds a weight to each of these owners, who may come more than once."""
    self._owners.append(owner)
    self._weights.append(weight.astype(np.int64))

  def totals(self) -> tuple[Int64[np.ndarray, " u"], Int64[np.ndarray, " u"]]:
    """The owners, each once, and what the rows of each weigh together."""
    owners, index = np.unique(np.concatenate(self._owners), return_inverse=True)
    total = np.zeros(len(owners), np.int64)
    np.add.at(total, index, np.concatenate(self._weights))
    return owners, total

  def heaviest(self) -> int:
    """The largest sum of an owner's weights; 0 of no rows."""
    _, total = self.totals()
    return int(total.max(initial=0))


def digest_of(*public: Any) -> str:
  """SHA-256 of public numbers, strings and arrays, in hexadecimal.

  Saved heads have these digests in the keys of their estimates: what goes into
  one never changes.
  """
  digest = hashlib.sha256()
  for value in public:
    array = np.asarray("" if value is None else value)
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()
