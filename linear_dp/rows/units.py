"""Which rows of a privacy unit are summed: at most m, by their ids alone."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.block import RowBlock
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.rows.secret import Secret

# Public and fixed: the choice need not be secret, only blind to content. The
# digits of π.
_KEY = np.uint64(0x243F6A8885A308D3)
_PART_KEY = np.uint64(0x13198A2E03707344)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ChosenRows(Secret):
  """The ids, sorted, of this host's rows that count, at most m of a unit."""

  secret_example_ids: Int64[np.ndarray, " chosen"]

  def among(self, block: RowBlock) -> Bool[np.ndarray, " rows"]:
    """Which rows of a block count."""
    ids = self.secret_example_ids
    if not ids.size:
      return np.zeros(len(block.example_id), bool)
    at = np.minimum(np.searchsorted(ids, block.example_id), ids.size - 1)
    return ids[at] == block.example_id


CHOICE = "choice of rows"
"""The pass that other hosts are asked for."""


def choose_rows(
  blocks: Iterable[RowBlock], rows_per_unit: int, hosts: Hosts = ALONE
) -> ChosenRows:
  r"""Chooses min(m, k) of the k rows of each unit.

      the m smallest of  h(unit_id, j),   j = 0 … k − 1

  where j is the place of a row among the rows of its unit, by `example_id`, and
  h(unit_id, ·) a fixed pseudorandom permutation of the 64-bit integers.

  Formal guarantees: which rows of a unit are chosen is a function of the unit's
  own ids: not of embeddings, labels, the order of the rows, the size of the
  blocks, or other units. The place among the unit's rows stands in for the id
  itself because ids are often positions in the data set: with another unit
  gone, positions move, their order within a unit does not.
  """
  hosts.ask(CHOICE, rows_per_unit=rows_per_unit)
  pairs = [
    np.stack([unit_ids_of(block), block.example_id], axis=1) for block in blocks
  ]
  own = np.concatenate([np.empty((0, 2), np.int64), *pairs])
  del pairs
  unit, example = hosts.gather(own).T
  hosts.sum()
  order = np.lexsort((example, unit))
  unit, example = unit[order], example[order]
  del order
  hashed = _hash(unit, _place(unit))
  # Only the order within a unit changes: places are those of before.
  by_hash = np.lexsort((hashed, unit))
  chosen = example[by_hash[_place(unit) < rows_per_unit]]
  if hosts.count > 1:
    chosen = chosen[np.isin(chosen, own[:, 1])]
  chosen.sort()
  return ChosenRows(secret_example_ids=chosen)


def check_contributions(
  unit: Int64[np.ndarray, " summed"], rows_per_unit: int
) -> None:
  """Refuses a sum of rows of these `unit_id` with too many of one.

  The InputError names neither the unit nor the number of its rows.
  """
  if _place(np.sort(unit)).max(initial=0) >= rows_per_unit:
    raise InputError(
      f"A unit has more than rows_per_unit={rows_per_unit} rows in the sum: the"
      " rows changed while they were read; run the same command again."
    )


def unit_words(block: RowBlock) -> UInt64[np.ndarray, " rows"]:
  """64 even bits of the `unit_id` alone, to put whole units into parts by."""
  return _mixed(unit_ids_of(block).view(np.uint64) ^ _PART_KEY)


def unit_ids_of(block: RowBlock) -> Int64[np.ndarray, " rows"]:
  """The block's `unit_id`; an InputError if it is not int64, one per row."""
  unit, shape = block.unit_id, block.example_id.shape
  if unit is None or unit.dtype != np.int64 or unit.shape != shape:
    found = "none" if unit is None else f"{unit.dtype} {list(unit.shape)}"
    raise InputError(
      f"A block has unit_id {found}, not int64 {list(shape)}: run"
      " `oneshot-dp verify` on the cache."
    )
  return unit


def _place(unit: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
  """How many rows of the same unit come before each, in sorted units."""
  index = np.arange(unit.size)
  first = np.ones(unit.size, bool)
  first[1:] = unit[1:] != unit[:-1]
  return index - np.maximum.accumulate(np.where(first, index, 0))


def _hash(
  unit: Int64[np.ndarray, " n"], place: Int64[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
  """h(unit, ·): for each unit a permutation, so that no two places tie."""
  return _mixed(place.astype(np.uint64) ^ _mixed(unit.view(np.uint64) ^ _KEY))


def _mixed(x: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
  """A permutation of the 64-bit integers in which every bit moves all others.

  Source: Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
  OOPSLA 2014 (the finalizer of SplitMix64, variant 13 of Stafford).
  """
  x = x + np.uint64(0x9E3779B97F4A7C15)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
