"""The contract between `train` and a head: what a new head has to provide.

A head is one file in this folder and one row in `registry.HEADS`. The row is a
`HeadSpec`, whose `make` is a `HeadFn`: a function that releases noisy sums of
private rows, and computes weights from them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HeadState:
  """What a head with a larger ε continues from; all of it is public.

  Estimates of statistics that are released again are not in it: `PrivateSums`
  keeps them.

  Attributes:
    kernel: the weights [d, K] after the last step, for rows that are centered
      but not whitened.
    begin: the part of these weights that a public start is; zeros if there was
      none. The rest is what noisy gradients made.
    length: the mean norm of the columns of `kernel` where rows were whitened
      as well, which is where the steps were taken.
    centered: whether the mean of the rows was taken off them.
  """

  kernel: Float64[np.ndarray, "d K"]
  begin: Float64[np.ndarray, "d K"]
  length: float
  centered: bool

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns the state as named float64 arrays, to be saved with the head."""
    return {
      "kernel": self.kernel,
      "begin": self.begin,
      "length": np.array(self.length),
    }

  @classmethod
  def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "HeadState | None":
    """Reads the state from the arrays that are saved with a head.

    Rows were centered if the mean was released. Heads that were saved before
    2026-11-28 have no "begin". Where rows were centered, steps began at zeros,
    so it is zeros; from a public start it cannot be told from the rest.

    Args:
      arrays: `to_arrays`, and estimates of statistics under "estimate/NAME/ID".

    Returns:
      The state; None for a head that keeps none.

    Raises:
      InputError: the head is of an older version, and had a public start.
    """
    # Heads of one step have no state: the estimates of their class sums are
    # enough.
    if "kernel" not in arrays:
      return None
    # The format has no flag for this. Older heads are told apart by what they
    # released, which is the truth that the flag would repeat.
    centered = any(name.startswith("estimate/mean/") for name in arrays)
    if "begin" in arrays:
      begin = arrays["begin"]
    elif centered:
      begin = np.zeros_like(arrays["kernel"])
    else:
      raise InputError(
        "the head to continue was trained from a public start by an older"
        " version, which did not keep what part of the weights the start is:"
        " train a new head, without --from."
      )
    return cls(
      kernel=arrays["kernel"],
      begin=begin,
      length=arrays["length"].item(),
      centered=centered,
    )


class HeadResult(NamedTuple):
  """What a `HeadFn` returns.

  Attributes:
    head: the weights.
    state: what a larger ε continues from; None if the estimates that
      `PrivateSums` keeps are enough.
  """

  head: LinearHead
  state: HeadState | None = None


@runtime_checkable
class HeadFn(Protocol):
  """Makes the weights of a head from noisy sums of private rows."""

  def __call__(
    self,
    sums: PrivateSums,
    rows: Rows,
    *,
    new_mu_squared: float,
    spent_mu_squared: float,
    state: HeadState | None,
    options: HeadOptions,
  ) -> HeadResult:
    """Makes a head, or continues to one with a larger ε.

    Formal guarantees: a `HeadFn` needs no proof of its own. Private rows are
    behind `sums.release`, which refuses what was not charged.

    Args:
      sums: the Gaussian mechanism, the only way to learn about the rows.
      rows: the private rows, as `HeadSpec.prepare_rows` made them.
      new_mu_squared: the budget that this call may release, as μ² = σ⁻². It is
        infinite for a baseline without noise.
      spent_mu_squared: the μ² of the head with a smaller ε that this one
        continues; 0 for the first head.
      state: what that head returned; None for the first head.
      options: settings that change what is computed, not what it costs.

    Returns:
      The head, and what a larger ε continues from.
    """
    ...


def no_extra_memory(
  *, n: int, feature_dim: int, num_classes: int, has_units: bool
) -> int:
  """Returns 0: the head holds no more than `memory_needed` counts for all."""
  del n, feature_dim, num_classes, has_units
  return 0


@runtime_checkable
class ExtraMemory(Protocol):
  """Computes the bytes that a head holds beside what all heads hold.

  Args:
    n: the public number of private rows.
    feature_dim: d, the width of an embedding.
    num_classes: K.
    has_units: whether a privacy unit may have several rows.
  """

  def __call__(
    self, *, n: int, feature_dim: int, num_classes: int, has_units: bool
  ) -> int: ...


def no_extra_disk(*, feature_dim: int) -> int:
  """Returns 0: the head saves nothing larger than its weights."""
  del feature_dim
  return 0


@runtime_checkable
class ExtraDisk(Protocol):
  """Computes the bytes that a head saves beside what all heads save."""

  def __call__(self, *, feature_dim: int) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadSpec:
  """All that `train` and the commands know about a kind of head.

  Attributes:
    make: computes the weights.
    prepare_rows: how the head sees private rows. The result may be shared by
      any number of heads; `Rows.validate` tells what is wrong with a row,
      before any charge.
    accepts_options: whether the head reads `HeadOptions`; if not, giving any
      option is an error.
    extra_memory: bytes that it holds beside what all heads hold.
    extra_disk: bytes that it saves beside what all heads save.
  """

  make: HeadFn
  prepare_rows: Callable[[PrivateDataset], Rows]
  accepts_options: bool = False
  extra_memory: ExtraMemory = no_extra_memory
  extra_disk: ExtraDisk = no_extra_disk
