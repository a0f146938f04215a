"""Parts of a cache: `[:80%]`, `[80%:]`, `[10%:20%]`, chosen when it is read.

Whether a row is in a part is decided by the bytes of its image, so that one
image more or less moves no other, as positions would. Copies of an image are in
one part, and so are all rows of a unit. How many rows a part has is private;
the mean number is public.
"""

import dataclasses
import re
from typing import Self

from oneshot_dp.configs.errors import InputError

_PART = re.compile(r"\[\s*(?:(\d{1,3})%)?\s*:\s*(?:(\d{1,3})%)?\s*\]")


@dataclasses.dataclass(frozen=True)
class Part:
  """The rows from one percentage to another, which must rise.

  >>> part = Part.parse("[80%:]")
  >>> part.first, part.last, str(part), part.mean_of(1001)
  (80, 100, '[80%:]', 200)
  """

  first: int = 0
  last: int = 100

  def __post_init__(self):
    if not 0 <= self.first < self.last <= 100:
      raise InputError(
        f"--rows [{self.first}%:{self.last}%] must rise, within 0% and 100%."
      )

  @classmethod
  def parse(cls, text: str) -> Self:
    """What was given to --rows; "" is the whole. InputError: it is no part."""
    if found := _PART.fullmatch(text.strip() or "[:]"):
      return cls(int(found[1] or 0), int(found[2] or 100))
    bare = text.strip(" []")
    is_near = re.fullmatch(r"\d*%?\s*:\s*\d*%?", bare)
    near = re.sub(r"(\d+)%?", r"\1%", bare) if is_near else ":80%"
    raise InputError(
      f"--rows {text!a} is not a part of a cache: give percentages in brackets,"
      f" such as '[{near}]'; rows are chosen by content, not by their number."
    )

  def __str__(self) -> str:
    first = f"{self.first}%" if self.first else ""
    last = f"{self.last}%" if self.last < 100 else ""
    return "" if self.is_whole else f"[{first}:{last}]"

  @property
  def is_whole(self) -> bool:
    return (self.first, self.last) == (0, 100)

  def mean_of(self, num_rows: int) -> int:
    """How many of so many rows are in it on average, and at least 1; public."""
    return max(1, round(num_rows * (self.last - self.first) / 100))


WHOLE = Part()
