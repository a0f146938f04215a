"""Bounds on how much of a file is ever in memory, for all readers.

What a file unfolds to is bounded before it is unfolded. A file of a few
kilobytes may claim, or really have, gigabytes of zeros, or a single cell that a
thousand rows refer to; memory that runs out ends the whole machine, and not
only one job.
"""

from oneshot_dp.configs.errors import InputError

MAX_ROWS = 1 << 23
"""Rows of one file: each takes about 100 bytes while the file is listed."""
MAX_COLUMN_BYTES = 1 << 28
"""Labels, or units, of one file, before they are unfolded to Python's."""
MAX_FEW_WORDS_BYTES = 1 << 24
"""An array of strings that nobody asked for, and that is looked at."""
MAX_WORD_BYTES = 1 << 16
"""The name of a class, or of an owner, in a table."""
MAX_OWNER_CHARACTERS = 1 << 12
"""The name of an owner, wherever it is read: as a path may have at most."""
MAX_IMAGE_BYTES = 1 << 28
"""One image before it is decoded: a file, a member of a tar, a cell."""
MAX_ARRAY_BYTES = 1 << 30
"""Images of one file that are in memory together."""
_MOST_UNFOLDING = 1000
"""How many times its bytes on the disk a part of a file may unfold to."""


def check_rows(path: str, rows: int) -> None:
  """Raises InputError where a file states more rows than a file may have.

  Args:
    path: of the file, for the message.
    rows: how many it states, before any of them is read.
  """
  if not 0 <= rows <= MAX_ROWS:
    raise InputError(
      f"{path!r} states {rows:,} rows, and a file may have {MAX_ROWS:,}: write"
      " it as several files."
    )


def check_bytes(path: str, what: str, size: int, most: int) -> None:
  """Raises InputError where a part of a file unfolds to too many bytes.

  Args:
    path: of the file, for the message.
    what: the part, for the message ("column 'label'").
    size: bytes that it states for the part, before it is unfolded.
    most: how many are allowed.
  """
  if not 0 <= size <= most:
    raise InputError(
      f"{path!r}: {what} unfolds to {size:,} bytes, and may have {most:,}: make"
      " it smaller, or write it as several files."
    )


def check_unfolding(
  path: str,
  what: str,
  size: int,
  stored: int,
  most: int,
  most_unfolding: int = _MOST_UNFOLDING,
) -> None:
  """Raises InputError where few bytes unfold to many: no real data do.

  A column of Parquet may be a few runs of one value, or rows that all refer to
  one cell: its footer does not say what it unfolds to.

  Args:
    path: of the file.
    what: the part of it, for the message.
    size: bytes that it unfolds to.
    stored: bytes that it takes in the file.
    most: bytes that any part may unfold to.
    most_unfolding: how many times its stored bytes a larger part may unfold to.
  """
  if size > most and size > most_unfolding * stored:
    raise InputError(
      f"{path!r}: {what} unfolds from {stored:,} bytes to {size:,}, more than"
      f" {most:,} and {most_unfolding:,} times as many: write the file anew"
      " without it."
    )
