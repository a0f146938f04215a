"""Arrays of an npz: what a header states is bounded before it is believed."""

import math
from typing import Any, NamedTuple

import numpy as np

HEADER_BYTES = 1 << 16
"""A header is no longer: it states a shape and a dtype."""


class Header(NamedTuple):
  """What the header of an array states.

  Attributes:
    shape: of the array.
    is_fortran: whether columns come one after the other, not rows.
    dtype: of its values; one with objects for a pickle, which runs code.
  """

  shape: tuple[int, ...]
  is_fortran: bool
  dtype: np.dtype


def read_header(member: Any) -> Header:
  """Reads the header of an array, which is a literal and no pickle.

  Args:
    member: an open member of an archive, at its start.

  Raises:
    ValueError: it is damaged, longer than `HEADER_BYTES`, or of a version that
      plain arrays do not need.
  """
  # NumPy reads a header whole before it looks at its length, which a file may
  # state as 4 GiB. Six bytes say what it is, two of the version, then the
  # length: two bytes in version 1, and four later.
  start = member.peek(12)[:12]
  length = int.from_bytes(start[8:12], "little")
  if start[6:7] > b"\x01" and length > HEADER_BYTES:
    raise ValueError(
      f"a header of {length:,} bytes, which may have {HEADER_BYTES:,}"
    )
  major, _ = np.lib.format.read_magic(member)
  if major == 1:
    return Header(*np.lib.format.read_array_header_1_0(member))
  if major == 2:
    return Header(*np.lib.format.read_array_header_2_0(member))
  raise ValueError(f"an array of format {major}")


def read_array(member: Any, stated_bytes: int) -> np.ndarray:
  """Reads a plain array whole.

  Args:
    member: an open member of an archive, at its start.
    stated_bytes: what the archive says that the member unfolds to; no more is
      allocated.

  Raises:
    ValueError: it is damaged, holds Python objects, or its header states
      another size than the archive.
  """
  header = read_header(member)
  num_bytes = math.prod(header.shape) * header.dtype.itemsize
  if num_bytes > stated_bytes:
    raise ValueError(f"{num_bytes:,} bytes are stated of {stated_bytes:,}")
  member.seek(0)
  values = np.lib.format.read_array(member, allow_pickle=False)
  if member.read(1):  # and the archive's checksum is compared here
    raise ValueError("it is longer than it says")
  return values
