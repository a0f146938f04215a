"""Private heads. A new one is one file here, and one row in HEADS."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.linear_dp.data import Data
from oneshot_dp.linear_dp.head import Made
from oneshot_dp.linear_dp.heads.auto import auto, unit_rows
from oneshot_dp.linear_dp.heads.one_step import (
  clipped_rows,
  one_step,
  optimizer_of,
)
from oneshot_dp.linear_dp.rows import Rows


class Head(NamedTuple):
  """How a head sees its rows, and the function that makes it; see `auto`."""

  rows: Callable[[Data], Rows]
  make: Callable[..., Made]


def _along(name: str) -> Head:
  optimizer = optimizer_of(name)
  return Head(clipped_rows, functools.partial(one_step, optimizer=optimizer))


HEADS: Mapping[HeadName, Head] = {
  "auto": Head(unit_rows, auto),
  "lamb": _along("lamb"),
  "adam": _along("adam"),
  "momentum": _along("momentum"),
}
