"""Parts of a split: `train[:80%]`, `all[10%:20%]`.

Whether an example is in a part is decided by its own bytes, so one example more
or less moves no other, as positions would. Parts have about so many percent of
the examples, therefore, and copies of an image are in one part. How many there
are is private. Where examples have units, it is decided by the `unit_id` alone,
so that no unit is in two parts.
"""

import dataclasses
import re
from typing import Self

from oneshot_dp.configs.errors import InputError

_PART = re.compile(
  r"(?P<split>[^\[\]+]+)\[(?:(?P<start>\d+)%)?:(?:(?P<stop>\d+)%)?\]"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitPart:
  """A split, or the part of it from one percentage to another.

  >>> part = SplitPart.of("train[80%:]")
  >>> part.split, part.start, part.stop
  ('train', 80, 100)
  >>> SplitPart.of("train[:1000]").is_whole  # up to the source, by position
  True
  """

  split: str
  start: int = 0
  stop: int = 100

  @classmethod
  def of(cls, split: str) -> Self:
    """Reads its name; InputError where the percentages make no such part."""
    if "%" not in split:
      return cls(split=split)
    if found := _PART.fullmatch(split):
      start, stop = int(found["start"] or 0), int(found["stop"] or 100)
      if 0 <= start < stop <= 100:
        return cls(split=found["split"].strip(), start=start, stop=stop)
    raise InputError(
      f"split={split!r} is not a part of a split: give one split and whole"
      " percentages that rise, such as 'train[:80%]' or 'train[80%:]'."
    )

  @property
  def is_whole(self) -> bool:
    return (self.start, self.stop) == (0, 100)

  def mean_of(self, num_examples: int) -> int:
    """How many of so many examples are in it on average, and at least 1."""
    return max(1, round(num_examples * (self.stop - self.start) / 100))
