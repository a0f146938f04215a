"""Arrays of an npz: what a header states is bounded before it is believed."""

import math
import zipfile
from typing import Any, NamedTuple

import numpy as np

HEADER_BYTES = 1 << 16
"""A header is no longer: it states a shape and a dtype."""
MAX_DIRECTORY_BYTES = 1 << 22
"""The longest list of arrays that an npz may end with: some 60,000 names."""
# The record that a zip ends with, before a comment; a large zip has two more
# records before it, and then the first of them counts.
_END, _END_BYTES = b"PK\x05\x06", 22
_LARGE_END, _LARGE_END_BYTES = b"PK\x06\x06", 56
_LOCATOR, _LOCATOR_BYTES = b"PK\x06\x07", 20
_MOST_COMMENT_BYTES = 1 << 16


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


def open_archive(content: Any) -> zipfile.ZipFile:
  """Opens an npz, whose list of arrays is bounded before it is read.

  Python makes an object of a kilobyte of each 50 bytes of the list.

  Args:
    content: the open file.

  Raises:
    ValueError: the list is longer than `MAX_DIRECTORY_BYTES`.
    zipfile.BadZipFile: it is no zip.
  """
  content.seek(0, 2)
  size = content.tell()
  most = _END_BYTES + _MOST_COMMENT_BYTES + _LOCATOR_BYTES + _LARGE_END_BYTES
  content.seek(max(0, size - most))
  tail = content.read(most)
  content.seek(0)
  end = tail.rfind(_END)
  num_bytes = int.from_bytes(tail[end + 12 : end + 16], "little")
  locator = end - _LOCATOR_BYTES
  large_end = locator - _LARGE_END_BYTES
  is_large = large_end >= 0 and tail.startswith(_LOCATOR, locator)
  if is_large and tail.startswith(_LARGE_END, large_end):
    field = tail[large_end + 40 : large_end + 48]
    num_bytes = int.from_bytes(field, "little")
  if end >= 0 and num_bytes > MAX_DIRECTORY_BYTES:
    raise ValueError(
      f"a list of arrays of {num_bytes:,} bytes, which may have"
      f" {MAX_DIRECTORY_BYTES:,}"
    )
  return zipfile.ZipFile(content)


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
