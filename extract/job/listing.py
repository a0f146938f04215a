"""The listing of a source: a digest of all of it, and pieces for workers.

A listing takes 60 bytes an image: too many for one file, and for a worker that
reads a thousandth of the images. So it is cut into sections, one for each shard
of the cache, and sections are packed into pieces of about 8 MB, each of which
is put once. A worker reads a section when it makes its shard, by a range of the
piece. What is true of the whole source (its header), and where the sections
are, is in the file of the launch.
"""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

import numpy as np

from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.file_table import File, columns_of
from oneshot_dp.extract.sources.source import Source

PIECE_BYTES = 8_000_000
"""A piece is closed once it has so many bytes."""
_AT_ONCE = 3 << 7
"""Examples that are encoded at a time, so few that Python's garbage collection
does not look at them. (And Base64 packs three bytes.)"""


def listing_digest(source: Source) -> str:
  """SHA-256, in hexadecimal, of all fields of a source; private.

  *Formal guarantee*: equal digests mean equal sources. It is part of what
  identifies a job, and so of every record of a cache, whatever the pieces are.
  """
  digest = hashlib.sha256()
  for part in listing_parts(source):
    digest.update(part.encode())
  return digest.hexdigest()


def listing_parts(source: Source) -> Iterator[str]:
  """A source as one JSON text, of which a part at a time is in memory.

  Names of files need not be valid UTF-8, which Python's JSON allows.
  """
  # The order of the fields is fixed: the digest is in every record of a cache,
  # and equal sources must have equal bytes.
  public = {
    "kind": type(source).__name__,
    "name": source.name,
    "split": source.split,
    "class_names": source.class_names,
    "unit": source.unit,
  }
  yield json.dumps(public).removesuffix("}")
  yield ', "labels": '
  yield from _array_parts(source.labels)
  yield ', "unit_ids": '
  if source.unit_ids is None:
    yield "null"
  else:
    yield from _array_parts(source.unit_ids)
  if source.weight_divisors is not None:
    yield ', "weight_divisors": '
    yield from _array_parts(source.weight_divisors)
  yield f', "root": {json.dumps(source.root)}, "files": ['
  yield from _file_parts(source)
  yield '], "columns": ['
  yield from _list_parts(_column_blocks(source))
  yield '], "locations": '
  yield from _location_parts(source)
  yield "}"


def _blocks(items: Any) -> Iterator[Any]:
  """A sequence in slices of some thousands."""
  for start in range(0, len(items), _AT_ONCE):
    yield items[start : start + _AT_ONCE]


def _file_parts(source: Source) -> Iterator[str]:
  """The elements of the list of files in JSON, a block at a time."""
  # As json.dumps writes a list of `File`, in a third of its time.
  separator = ""
  for block in _blocks(source.files):
    texts: list[str] = []
    for path, size, version in zip(*columns_of(block), strict=True):
      quoted_path = encode_basestring_ascii(path)
      texts.append(f"[{quoted_path}, {size}, {version}]")
    yield separator + ", ".join(texts)
    separator = ", "


def _column_blocks(source: Source) -> Iterator[Sequence[str]]:
  if source.columns:
    yield from _blocks(source.columns)
    return
  for block in _blocks(range(len(source.files))):
    yield [""] * len(block)


def _list_parts(blocks: Iterable[Sequence[Any]]) -> Iterator[str]:
  """The elements of a list in JSON, a block at a time."""
  separator = ""
  for block in blocks:
    yield separator + json.dumps(list(block))[1:-1]
    separator = ", "


def _array_parts(array: np.ndarray) -> Iterator[str]:
  yield from _encoded_array(array.dtype, array.shape, _blocks(array))


def _location_parts(source: Source) -> Iterator[str]:
  if source.locations is not None:
    yield from _array_parts(source.locations)
    return
  blocks = (
    source.locations_of(rows.start, rows.stop)
    for rows in _blocks(range(len(source)))
  )
  yield from _encoded_array(np.dtype(np.int64), (len(source), 3), blocks)


def _encoded_array(
  dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[np.ndarray]
) -> Iterator[str]:
  """The dtype, the shape and, in Base64, the bytes of an array."""
  yield f'["{dtype.str}", {json.dumps(shape)}, "'
  for block in blocks:
    yield base64.b64encode(block.tobytes()).decode()
  yield '"]'


def encode_header(source: Source) -> bytes:
  """Encodes what is true of the whole source: all but its listing."""
  header: dict[str, Any] = {
    "kind": type(source).__name__,
    "num_examples": len(source),
    "name": source.name,
    "split": source.split,
    "class_names": source.class_names,
    "unit": source.unit,
    "root": source.root,
  }
  # TFDS finds examples by their index: a worker needs no listing of them.
  if not source.IS_LISTED:
    header["files"] = list(source.files)
    header["columns"] = source.columns
  return json.dumps(header).encode()


def decode_header(data: bytes) -> Source:
  """Makes a source without examples, or with all where none is listed."""
  header = json.loads(data)
  if header["kind"] == Source.__name__:
    return Source(
      name=header["name"],
      split=header["split"],
      class_names=tuple(header["class_names"]),
      unit=header["unit"],
      labels=np.zeros(0, np.int32),
      root=header["root"],
      files=(),
      columns=(),
      locations=None,
    )
  # TFDS takes seconds to import.
  from oneshot_dp.extract.sources.tfds.tfds_source import Tfds, unread_labels

  return Tfds(
    name=header["name"],
    split=header["split"],
    class_names=tuple(header["class_names"]),
    unit=header["unit"],
    labels=unread_labels(header["num_examples"]),
    root=header["root"],
    files=tuple(File(*file) for file in header["files"]),
    columns=tuple(header["columns"]),
    locations=np.zeros((0, 3), np.int64),
  )


def encode_section(source: Source, rows: range) -> bytes:
  """Encodes the listing of some examples of a source as JSON; private.

  Args:
    source: all of it.
    rows: the examples, by their indices: one shard's, one at least.

  Returns:
    What `decode_section` reads: labels, units, files and locations of these
    examples alone.
  """
  start = rows.start
  stop = rows.stop
  # In columns, which JSON writes faster than millions of rows.
  section: dict[str, Any] = {"labels": source.labels[start:stop].tolist()}
  if source.unit_ids is not None:
    section["unit_ids"] = source.unit_ids[start:stop].tolist()
  if source.weight_divisors is not None:
    divisors = source.weight_divisors[start:stop].tolist()
    section["weight_divisors"] = divisors
  if source.locations is None:
    section["files"] = columns_of(source.files[start:stop])
    return json.dumps(section).encode()
  # Of the files only those that have these examples, numbered from 0.
  locations = source.locations[start:stop].copy()
  first = int(locations[0, 0])
  last = int(locations[-1, 0])
  locations[:, 0] -= first
  section["files"] = columns_of(source.files[first : last + 1])
  section["columns"] = source.columns[first : last + 1]
  section["locations"] = locations.tolist()
  # How many rows of its first file lie before the section: errors name a row
  # by its number in the file.
  begin = int(np.searchsorted(source.locations[:, 0], first))
  section["first_row"] = start - begin
  return json.dumps(section).encode()


def decode_section(header: Source, data: bytes, first_index: int) -> Source:
  """Makes the part of a source that a section lists.

  Args:
    header: the source without an example.
    data: what `encode_section` made.
    first_index: of the first example of the section.
  """
  section = json.loads(data)
  unit_ids = None
  if "unit_ids" in section:
    unit_ids = np.array(section["unit_ids"], np.int64)
  divisors = None
  if "weight_divisors" in section:
    divisors = np.array(section["weight_divisors"], np.uint32)
  locations = None
  if "locations" in section:
    locations = np.array(section["locations"], np.int64).reshape(-1, 3)
  return dataclasses.replace(
    header,
    labels=np.array(section["labels"], np.int32),
    unit_ids=unit_ids,
    weight_divisors=divisors,
    files=tuple(map(File, *section["files"])),
    columns=tuple(section.get("columns", ())),
    locations=locations,
    first_index=first_index,
    first_row=section.get("first_row", 0),
  )


def put_pieces(
  source: Source, info: CacheInfo, put: Callable[[int, bytes], None]
) -> list[list[int]]:
  """Writes the sections of all shards, in pieces.

  Args:
    source: all of it.
    info: says which examples are of which shard.
    put: writes the piece of a number.

  Returns:
    The sizes of the sections of each piece, in bytes; an empty list where
    examples are found without a listing.
  """
  pieces: list[list[int]] = []
  if not source.IS_LISTED:
    return pieces
  sections: list[bytes] = []
  for index in range(info.num_shards):
    sections.append(encode_section(source, info.shard_range(index)))
    sizes = [len(section) for section in sections]
    if sum(sizes) >= PIECE_BYTES or index == info.num_shards - 1:
      put(len(pieces), b"".join(sections))
      pieces.append(sizes)
      sections = []
  return pieces


class Section(NamedTuple):
  """Where the section of a shard is: bytes start to start + size of a piece."""

  piece: int
  start: int
  size: int


def sections_of(pieces: Sequence[Sequence[int]]) -> list[Section]:
  """Finds the section of each shard by what `put_pieces` returned."""
  sections: list[Section] = []
  for number, sizes in enumerate(pieces):
    start = 0
    for size in sizes:
      sections.append(Section(number, start, size))
      start += size
  return sections
