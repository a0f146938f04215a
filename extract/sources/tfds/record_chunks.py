"""What the chunks of an ArrayRecord file unfold to, by their own headers.

ArrayRecord writes files of Riegeli's format: chunks of records, one behind the
other. The header of a chunk states how many bytes its data take, and to how
many they unfold; ArrayRecord's reader believes it, whatever the file says. At
each 64 KiB of the file there is a header of a block, which may lie within a
chunk.

Source: google/riegeli on GitHub, doc/riegeli_records_file_format.md.
"""

import functools
import os
import struct
from typing import BinaryIO

from oneshot_dp.extract.sources.limits import check_unfolding

_BLOCK_BYTES = 1 << 16
_BLOCK_HEADER_BYTES = 24
# Hash, bytes of data, hash of the data, kind and number of records, bytes of
# all records.
_CHUNK_HEADER = struct.Struct("<8xQ8xQQ")
_MOST_BYTES = 1 << 26
"""A larger chunk, of which each thread may have one in memory, must not unfold
to more than `_MOST_UNFOLDING` times its bytes."""
_MOST_UNFOLDING = 100


@functools.lru_cache(maxsize=4096)  # the files that a process reads
def check_chunks(path: str, size: int) -> None:
  """Refuses an ArrayRecord file of which a chunk unfolds to far too much.

  Only headers are read. A damaged file is left to its reader, which compares
  checksums.

  Args:
    path: of the file, on a disk.
    size: its bytes.

  Raises:
    InputError: images do not unfold so.
    OSError: the file cannot be read.
  """
  with open(path, "rb") as file:
    begin = 0
    while begin < size:
      header = _read_header(file, begin)
      if not any(header):
        return
      num_bytes, kind_and_records, unfolded = _CHUNK_HEADER.unpack(header)
      check_unfolding(
        path, "a chunk", unfolded, num_bytes, _MOST_BYTES, _MOST_UNFOLDING
      )
      # A chunk has a place of its own for each record, however small they are.
      num_records = kind_and_records >> 8
      end = _skip(begin, _CHUNK_HEADER.size + num_bytes)
      begin = max(end, begin + num_records)


def _read_header(file: BinaryIO, begin: int) -> bytes:
  """The header of a chunk, without that of a block; zeros behind the end."""
  most = _CHUNK_HEADER.size + _BLOCK_HEADER_BYTES
  content = os.pread(file.fileno(), most, begin).ljust(most, b"\0")
  to_block = -begin % _BLOCK_BYTES
  if to_block < _CHUNK_HEADER.size:
    content = content[:to_block] + content[to_block + _BLOCK_HEADER_BYTES :]
  return content[: _CHUNK_HEADER.size]


def _skip(begin: int, num_bytes: int) -> int:
  """The place so many bytes of chunks behind a place in the file."""
  room = _BLOCK_BYTES - _BLOCK_HEADER_BYTES
  block, within = divmod(begin, _BLOCK_BYTES)
  bytes_before = block * room + max(0, within - _BLOCK_HEADER_BYTES)
  block, within = divmod(bytes_before + num_bytes, room)
  if not within:  # a chunk at the begin of a block begins with its header
    return block * _BLOCK_BYTES
  return block * _BLOCK_BYTES + _BLOCK_HEADER_BYTES + within
