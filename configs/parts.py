"""Parts of a cache: `[:80%]`, `[80%:]`, `[10%:20%]`, chosen when it is read.

A hash of its image decides whether a row is in a part. So one image more or
less moves no other into or out of it, as it would if positions decided. Copies
of an image are in the same part, and so are all rows of a unit. How many rows a
part has is private; the mean number is public.
"""

import dataclasses
import re
from typing import Self

from oneshot_dp.configs.errors import InputError

_PART = re.compile(r"\[\s*(?:(\d{1,3})%)?\s*:\s*(?:(\d{1,3})%)?\s*\]")


@dataclasses.dataclass(frozen=True)
class Part:
  """The rows from one percentage of a cache to another.

  >>> part = Part.parse("[80%:]")
  >>> part.first, part.last, str(part), part.mean_of(1001)
  (80, 100, '[80%:]', 200)

  Attributes:
    first: where the part begins, in percent.
    last: where it ends; more than `first`.
  """

  first: int = 0
  last: int = 100

  def __post_init__(self):
    if not 0 <= self.first < self.last <= 100:
      raise InputError(
        f"the part [{self.first}%:{self.last}%] must rise, within 0% and 100%."
      )

  @classmethod
  def parse(cls, text: str, name: str = "--rows") -> Self:
    """Parses the value of --rows.

    Args:
      text: such as "[:80%]"; "" is the whole cache.
      name: of the flag or argument, for messages.

    Returns:
      The part.

    Raises:
      InputError: it is not a part; the message suggests one that is close.
    """
    bounds = _PART.fullmatch(text.strip() or "[:]")
    if bounds is not None:
      return cls(int(bounds[1] or 0), int(bounds[2] or 100))
    # A part by positions, as in Python, would let one row move others across
    # the border. The error suggests the percentages instead.
    suggestion = ":80%"
    inner = text.strip(" []")
    if re.fullmatch(r"\d*%?\s*:\s*\d*%?", inner):
      suggestion = re.sub(r"(\d+)%?", r"\1%", inner)
    raise InputError(
      f"{name} {text!a} is not a part of a cache: give percentages in brackets,"
      f" such as '[{suggestion}]'; rows are chosen by content, not by their"
      " number."
    )

  def __str__(self) -> str:
    if self.is_whole:
      return ""
    first = f"{self.first}%" if self.first > 0 else ""
    last = f"{self.last}%" if self.last < 100 else ""
    return f"[{first}:{last}]"

  @property
  def is_whole(self) -> bool:
    """Whether the part is all of the cache."""
    return (self.first, self.last) == (0, 100)

  def mean_of(self, num_rows: int) -> int:
    """The expected number of rows of the part, at least 1; public.

    Args:
      num_rows: rows of the whole cache.
    """
    return max(1, round(num_rows * (self.last - self.first) / 100))


WHOLE = Part()
