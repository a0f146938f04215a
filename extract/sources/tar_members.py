"""Finds the members of a tar by their headers, and reads none of their bytes.

A member is then read as a range of the file, by any process and in any order.
Names and sizes may be those of a header of GNU's or of pax before the member.
"""

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_BLOCK = tarfile.BLOCKSIZE
_LONG_NAME, _LONG_LINK = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
_PAX, _PAX_GLOBAL = tarfile.XHDTYPE, tarfile.XGLTYPE
_PAX_TYPES = (_PAX, _PAX_GLOBAL, tarfile.SOLARIS_XHDTYPE)
_MAX_NAME_BYTES = 1 << 20
_MOST_LENGTH_DIGITS = 20
_SPARSE = "GNU.sparse"
"""What all PAX records of a sparse file begin with."""


class Member(NamedTuple):
  """A member of a tar: its name, and where its bytes are in the file.

  `is_file` is whether they are the bytes of a plain file, and not of a link, a
  sparse file or a device.
  """

  name: str
  start: int
  size: int
  is_file: bool


def read_members(content: BinaryIO, file_size: int) -> Iterator[Member]:
  """All members but folders, in the order of the file.

  Headers are parsed by Python's tarfile, one at a time, but walked here:
  tarfile's own loop follows a negative size backwards, for ever, and reads
  names of any length. Each step here leads on, and no name takes more than
  1 MiB.

  Args:
    content: the whole file.
    file_size: in bytes.

  Yields:
    Members, whose places may lie beyond the end of a file that was cut.

  Raises:
    ValueError: a header is damaged, or the file ends before its end mark.
  """
  position = 0
  changes: dict[str, str] = {}
  while position < file_size:
    content.seek(position)
    block = content.read(_BLOCK)
    if block == bytes(_BLOCK):
      return
    header = _parse_header(block)
    start = position + _BLOCK
    if header.type in (_LONG_NAME, _LONG_LINK, *_PAX_TYPES):
      # What such a header has is about the next member.
      data = _read_extension(content, header, file_size - start)
      if header.type == _LONG_NAME:
        changes["path"] = os.fsdecode(data.rstrip(b"\0"))
      elif header.type in (_PAX, tarfile.SOLARIS_XHDTYPE):
        changes |= _parse_pax(data)
      position = _end_of(start, header.size)
      continue
    size = header.size
    if "size" in changes:
      size = _parse_size(changes["size"])
    # Bytes of a sparse file are not in the tar as they are, so a range of it is
    # not the image.
    is_sparse = _SPARSE in changes
    if header.type not in tarfile.REGULAR_TYPES:
      is_sparse = True
    if header.isdir():
      size = 0
    else:
      name = changes.get("path", header.name)
      yield Member(name, start, size, not is_sparse)
    has_data = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES
    position = _end_of(start, size if has_data else 0)
    changes = {}
  raise ValueError("it is damaged, or cut short")


def _parse_header(block: bytes) -> tarfile.TarInfo:
  try:
    header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
  except tarfile.HeaderError as error:
    raise ValueError("it is damaged, or cut short") from error
  if header.size < 0:
    raise ValueError(f"a member of {header.size} bytes")
  return header


def _read_extension(
  content: BinaryIO, header: tarfile.TarInfo, remaining: int
) -> bytes:
  if header.size > _MAX_NAME_BYTES:
    raise ValueError(
      f"a header of {header.size:,} bytes, which may have {_MAX_NAME_BYTES:,}"
    )
  if header.size > remaining:
    raise ValueError("it is damaged, or cut short")
  return content.read(header.size)


def _parse_pax(data: bytes) -> dict[str, str]:
  """The records of a PAX header: LENGTH, a space, KEY=VALUE, a newline.

  Only those that are used are returned: a tar may have any number of others
  before its first member.
  """
  records: dict[str, str] = {}
  data = data.rstrip(b"\0")
  # By positions, since what is left would be copied for each record: a header
  # of 1 MiB has 200,000 of them.
  position = 0
  while position < len(data):
    space = data.find(b" ", position, position + _MOST_LENGTH_DIGITS)
    length = data[position : max(space, position)]
    if not (length.isdigit() and 0 < int(length) <= len(data) - position):
      raise ValueError("a PAX header is damaged")
    end = position + int(length)
    key, _, value = data[space + 1 : end - 1].partition(b"=")
    if key in (b"path", b"size"):
      records[key.decode()] = os.fsdecode(value)
    elif key.startswith(_SPARSE.encode()):
      records[_SPARSE] = ""
    position = end
  return records


def _parse_size(text: str) -> int:
  if not (text.isascii() and text.isdecimal()):
    raise ValueError(f"a member of {text[:40]!a} bytes")
  return int(text)


def _end_of(start: int, size: int) -> int:
  """Where the next header begins: members fill whole blocks."""
  return start + -(-size // _BLOCK) * _BLOCK
