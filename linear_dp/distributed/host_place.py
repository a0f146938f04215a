"""Where a host stands among the others, and where it finds host 0."""

import dataclasses
import os
import re
from typing import Self

from oneshot_dp.configs.errors import InputError

_BY_HAND = re.compile(
  r"(?P<index>\d+)/(?P<count>\d+)@(?P<coordinator_address>.+:\d+)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostPlace:
  """Where a host stands among the others; None is for JAX to find out.

  Attributes:
    index: this host's number, from 0.
    count: how many hosts there are.
    coordinator_address: HOST:PORT of host 0, where the hosts meet.
    is_by_hand: whether all of it was given as text.
  """

  index: int | None
  count: int | None
  coordinator_address: str | None
  is_by_hand: bool

  @classmethod
  def parse(cls, text: str) -> Self:
    """Reads `--hosts`, and for `auto` JAX's environment variables.

    Raises:
      InputError: the text or a variable is not valid.
    """
    by_hand = _BY_HAND.fullmatch(text)
    if by_hand is None and text != "auto":
      raise InputError(
        f"hosts={text!r} must be auto, or INDEX/COUNT@HOST:PORT, such as"
        " 0/4@10.0.0.1:1234 on the first of four."
      )
    # Also read where the place is given by hand: a wrong one is a mistake.
    index = environment_number("JAX_PROCESS_ID")
    count = environment_number("JAX_NUM_PROCESSES")
    if by_hand is None:
      return cls(
        index=index,
        count=count,
        coordinator_address=os.environ.get("JAX_COORDINATOR_ADDRESS"),
        is_by_hand=False,
      )
    index = int(by_hand["index"])
    count = int(by_hand["count"])
    if index >= count:
      raise InputError(f"hosts={text!r}: hosts are 0 to COUNT - 1.")
    return cls(
      index=index,
      count=count,
      coordinator_address=by_hand["coordinator_address"],
      is_by_hand=True,
    )

  def find_coordinator(self, seconds: int) -> str | None:
    """Returns HOST:PORT of host 0, as given or as JAX finds out for `auto`.

    Args:
      seconds: how long a cluster's own service may be asked for it.
    """
    if self.coordinator_address is not None:
      return self.coordinator_address
    from jax._src.clusters import ClusterEnv  # has no public name

    # JAX would find it out by itself, but the address is needed for the error
    # if the hosts do not meet.
    address, *_ = ClusterEnv.auto_detect_unset_distributed_params(
      None, self.count, self.index, None, None, seconds
    )
    return address


def environment_number(name: str) -> int | None:
  """Returns a variable's number; None where it is not set or empty.

  Raises:
    InputError: it is not a number.
  """
  value = os.environ.get(name)
  if not value:
    return None
  if not value.isdecimal():
    raise InputError(f"{name}={value!r} must be a number.")
  return int(value)
