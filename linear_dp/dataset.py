"""Private rows as they are read, and what is public about them."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts

UNIT_WEIGHT = 2**20
"""W, the weight of a privacy unit, unless n is so large that int64 needs a
smaller one."""
_MAX_ROWS = 10**10

Block = Mapping[str, np.ndarray]
"""Columns embedding [r, d], embedding_norm, label, example_id [r] and, where a
privacy unit may have many rows, unit_id [r]."""


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
  def weight(self) -> int:
    """W: a power of two, small enough that n·W·R is at most 2⁶¹."""
    return min(UNIT_WEIGHT, 2**47 >> (self.n - 1).bit_length())

  def checked_blocks(self) -> Iterator[Block]:
    """Yields the blocks of one pass, each checked.

    Raises:
      InputError: a unit_id is missing or unexpected, a label is outside [0, K),
        or, at the end of the pass, an example_id came twice or there are many
        more than n rows. Private values are not in the message.
    """
    # Ids are collected over the pass: two rows with one id may be one image
    # that was read twice, and would then count twice, with twice the
    # sensitivity.
    ids_of_blocks = [np.empty(0, np.int64)]
    for block in self.blocks():
      self._check_block(block)
      ids_of_blocks.append(np.array(block["example_id"], np.int64))
      yield block
    ids = np.concatenate(ids_of_blocks)
    ids_of_blocks.clear()
    ids.sort()
    is_repeated = np.append(ids[1:] == ids[:-1], False)
    if is_repeated.any():
      self.refuse(ids, is_repeated, "it comes more than once")
    # `n` is public and only an expected number for a part of a cache. The true
    # number of rows is private, so it is not in the message.
    # The weight leaves room in int64 for so many rows and no more.
    if len(ids) > 2 * self.n + UNIT_WEIGHT:
      raise InputError(
        f"{self.name}: there are many more than the expected {self.n}."
      )

  def _check_block(self, block: Block) -> None:
    if self.has_units != ("unit_id" in block):
      has = "no" if self.has_units else "a"
      raise InputError(
        f"The rows have {has} unit_id, but the privacy unit is {self.unit!r}."
      )
    label = block["label"]
    # A scatter would drop such a row without a word, or count it for another
    # class.
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
