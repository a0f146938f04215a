"""Where the time of an extraction goes, and so what would make it faster."""

import dataclasses
from collections.abc import Mapping
from typing import Self

_ADVICE = {
  "read": "images closer to the workers would help",
  "decode": "more CPU cores for each device would help",
  "backbone": "more or faster devices would help",
  "write": "a faster disk would help",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageTimes:
  """Seconds that a worker was held up by each stage.

  Attributes:
    read: waiting for images, as far as the source kept the threads busy.
    decode: waiting for images, as far as decoding and resizing did.
    backbone: handing over batches and waiting for their embeddings.
    write: adding rows to shards, without the last flush of each.
  """

  read: float = 0.0
  decode: float = 0.0
  backbone: float = 0.0
  write: float = 0.0

  @classmethod
  def waiting(
    cls, *, seconds: float, read: float, decode: float, backbone: float
  ) -> Self:
    """Splits a wait for images by the threads' time in `read` and `decode`."""
    share = read / ((read + decode) or 1)
    return cls(
      read=seconds * share, decode=seconds * (1 - share), backbone=backbone
    )

  @classmethod
  def from_counters(cls, microseconds: Mapping[str, int]) -> Self:
    """The inverse of `counters`; what is missing is zero."""
    names = (f.name for f in dataclasses.fields(cls))
    return cls(**{n: microseconds.get(_counter(n), 0) / 1e6 for n in names})

  def counters(self) -> dict[str, int]:
    """Whole microseconds by the name of a counter."""
    values = dataclasses.asdict(self)
    return {_counter(n): round(1e6 * value) for n, value in values.items()}

  def __str__(self) -> str:
    """Shares of the time, and the bottleneck."""
    values = dataclasses.asdict(self)
    total = sum(values.values()) or 1
    shares = ", ".join(f"{n} {v / total:.0%}" for n, v in values.items())
    slowest = max(values, key=lambda name: values[name])
    return f"time: {shares}; the bottleneck is {slowest}: {_ADVICE[slowest]}"


def _counter(stage: str) -> str:
  return f"{stage}_microseconds"
