"""Tables of text whose columns stay in line, whatever is in them."""

import itertools
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence

_GAP = "  "
_ANY_WIDTH = 1_000_000


def text_table(
  header: Sequence[str],
  rows: Sequence[Sequence[str]],
  notes: Sequence[str] = (),
  *,
  num_keys: int = 1,
) -> list[str]:
  """The lines of a table; broken into several where it is too wide.

  Args:
    header: a title for each column; none is narrower than its title.
    rows: the cells, of which the last ones may be missing.
    notes: for each row, what stands behind it and in no column.
    num_keys: columns that say what a row is about: to the left, and again in
      each part of a table that is broken.
  """
  # Of a pipe, $COLUMNS says nothing.
  on_screen = sys.stdout.isatty()
  columns = shutil.get_terminal_size().columns if on_screen else _ANY_WIDTH
  widths = [
    max(_width(row[i]) for row in (header, *rows) if i < len(row))
    for i in range(len(header))
  ]
  lines: list[str] = []
  for first, part in enumerate(_parts(widths, num_keys, columns)):
    if first:
      lines.append("")
    lines.append(_line(header, widths, num_keys, part))
    for row, note in itertools.zip_longest(rows, notes, fillvalue=""):
      if first and part.start >= len(row):
        continue
      line = _line(row, widths, num_keys, part)
      lines.append(line if first or not note else f"{line}{_GAP}{note}")
  return lines


def _parts(
  widths: Sequence[int], num_keys: int, columns: int
) -> Iterator[range]:
  """Columns behind the keys, as many as fit beside each other; one at least."""
  keys = sum(widths[:num_keys]) + len(_GAP) * (num_keys - 1)
  start, taken = num_keys, keys
  for i in range(num_keys, len(widths)):
    wanted = len(_GAP) + widths[i]
    if taken + wanted > columns and i > start:
      yield range(start, i)
      start, taken = i, keys
    taken += wanted
  yield range(start, len(widths))


def _line(
  row: Sequence[str], widths: Sequence[int], num_keys: int, part: range
) -> str:
  keys = [_pad(row[i], widths[i]) for i in range(num_keys)]
  cells = [_pad(row[i], -widths[i]) for i in part if i < len(row)]
  return _GAP.join([*keys, *cells])


def _pad(text: str, width: int) -> str:
  """To the left, or with a negative width to the right."""
  spaces = " " * (abs(width) - _width(text))
  return text + spaces if width >= 0 else spaces + text


def _width(text: str) -> int:
  """Places on a terminal: none for accents, two for wide characters."""
  return sum(
    0
    if unicodedata.combining(character)
    else 1 + (unicodedata.east_asian_width(character) in "WF")
    for character in text
  )
