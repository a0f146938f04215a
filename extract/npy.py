"""Arrays of an npz: what a header states is bounded before it is believed."""

import math
import zipfile
from typing import Any, NamedTuple

import numpy as np

HEADER_BYTES = 1 << 16
"""A header is no longer: it states a shape and a dtype."""
MAX_DIRECTORY_BYTES = 1 << 22
"""The longest list of arrays that an npz may end with: some 60,000 names."""


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


class _BoundedDirectory:
  """An open npz, whose list of arrays cannot be read if it is too long.

  `zipfile` reads the list in one piece. Where a file has several that may be
  meant, it is so the one that is bounded which is read, whatever the rule.

  Attributes:
    is_open: whether the list has been read: arrays are bounded by their own
      headers.
  """

  def __init__(self, content: Any):
    self.is_open = False
    self._content = content

  def read(self, size: int = -1) -> bytes:
    if not self.is_open and size > MAX_DIRECTORY_BYTES:
      raise ValueError(
        f"a list of arrays of {size:,} bytes, which may have"
        f" {MAX_DIRECTORY_BYTES:,}"
      )
    return self._content.read(size)

  def seek(self, offset: int, whence: int = 0) -> int:
    return self._content.seek(offset, whence)

  def tell(self) -> int:
    return self._content.tell()

  def seekable(self) -> bool:
    return True


def open_archive(content: Any) -> zipfile.ZipFile:
  """Opens an npz, whose list of arrays is bounded before it is read.

  Python makes an object of a kilobyte of each 50 bytes of the list.

  Args:
    content: the open file.

  Raises:
    ValueError: the list is longer than `MAX_DIRECTORY_BYTES`.
    zipfile.BadZipFile: it is no zip.
  """
  bounded: Any = _BoundedDirectory(content)
  archive = zipfile.ZipFile(bounded)
  bounded.is_open = True
  return archive


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
