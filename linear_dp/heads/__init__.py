"""Private heads. A new one is one file here, and one row in HEADS."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from oneshot_dp.linear_dp.data import Data
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.auto import auto, unit_rows
from oneshot_dp.linear_dp.heads.one_step import (
  OPTIMIZERS,
  clipped_rows,
  one_step,
)
from oneshot_dp.linear_dp.rows import Rows


class Head(NamedTuple):
  """How a head sees rows, and (sums, rows, buys, had, last, options) → it."""

  rows: Callable[[Data], Rows]
  make: Callable[..., tuple[LinearHead, Mapping[str, np.ndarray]]]


HEADS: Mapping[str, Head] = {"auto": Head(unit_rows, auto)} | {
  name: Head(clipped_rows, functools.partial(one_step, optimizer=optimizer))
  for name, optimizer in OPTIMIZERS.items()
}
