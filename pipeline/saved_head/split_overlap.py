"""Whether two splits of one data set may share rows, by their names alone."""

import re
from collections.abc import Iterator

_PART = re.compile(
  r"(?P<base>[^\[\]+]+?)"
  r"(?:\[(?P<start>\d*)(?P<start_unit>%?):(?P<stop>\d*)(?P<stop_unit>%?)\])?"
)
_END = 2**62


def may_overlap(one: str, other: str) -> bool:
  """False only where the names say that no row is in both.

  Splits are named as in TFDS: `train`, `train[:10%]`, `train[1000:2000]`,
  `train+test`. Two parts of one base are apart if both are cut in percent, or
  both in rows, and do not meet. Anything that is not understood may overlap,
  and so may whatever is called `all`.

  >>> may_overlap("train", "test"), may_overlap("train", "train[:10%]")
  (False, True)
  >>> may_overlap("train[:80%]", "train[80%:]")
  False

  Args:
    one: name of a split.
    other: name of another.
  """
  return any(_meet(a, b) for a in _parts(one) for b in _parts(other))


def _parts(split: str) -> Iterator[re.Match[str] | None]:
  for part in split.split("+"):
    yield _PART.fullmatch(part.strip())


def _meet(one: re.Match[str] | None, other: re.Match[str] | None) -> bool:
  if one is None or other is None:
    return True
  if one["base"] != other["base"]:
    return "all" in (one["base"], other["base"])
  units = {
    unit
    for part in (one, other)
    for side in ("start", "stop")
    if part[side]
    for unit in [part[f"{side}_unit"]]
  }
  if len(units) > 1:
    return True
  first, second = _interval(one), _interval(other)
  return max(first[0], second[0]) < min(first[1], second[1])


def _interval(part: re.Match[str]) -> tuple[int, int]:
  return int(part["start"] or 0), int(part["stop"] or _END)
