"""Hosts that run the same program, each over its own part of the rows.

Host 0 draws the noise, charges and writes; the others get what left.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int64, Shaped


@dataclasses.dataclass(frozen=True)
class Hosts:
  """This host, `index` of `count`; alone where there is no other."""

  index: int = 0
  count: int = 1

  @classmethod
  def of(cls, text: str | None) -> "Hosts":
    """Joins the hosts of `auto` or `INDEX/COUNT@HOST:PORT`; None is alone."""
    if text is None:
      return ALONE
    raise NotImplementedError

  @property
  def is_first(self) -> bool:
    """Whether this host charges, prints and writes."""
    return self.index == 0

  def own_shards(
    self, num_shards: int, has_units: bool
  ) -> Sequence[int] | None:
    """The shards that this host reads; None is all of them.

    Where a privacy unit may have many rows, in any shards, every host reads all
    of them and keeps the rows of its own units (`own_units`).
    """
    if self.count == 1 or has_units:
      return None
    return range(self.index, num_shards, self.count)

  def own_units(
    self, unit_id: Int64[np.ndarray, " r"]
  ) -> Shaped[np.ndarray, " r"]:
    """Whether each row is of a unit that this host has all rows of."""
    mixed = unit_id.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(32)) % np.uint64(self.count) == self.index

  def agree(self, what: str, text: str) -> None:
    """InputError on every host where not all say the same `text`."""

  def sum(
    self, own: Callable[[], Int64[np.ndarray, "..."]]
  ) -> Int64[np.ndarray, "..."]:
    """What all hosts' `own()` give, added up exactly; or the error of one."""
    return own()

  def from_first(
    self, make: Callable[[], Shaped[np.ndarray, "..."]]
  ) -> Shaped[np.ndarray, "..."]:
    """What host 0's `make()` gives, on every host."""
    return make()


ALONE = Hosts()
