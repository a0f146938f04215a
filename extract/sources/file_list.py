"""Names and sizes of many files, in the bytes of their listing."""

import array
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from oneshot_dp.extract.storage.fetch_ahead import Buffer
from oneshot_dp.extract.storage.scratch import mapped

# A quote in a string is written \", and no image's name ends in "], [".
_BETWEEN = re.compile(rb'\d\], (?=\[")')
_ENCODED_AT_ONCE = 1000
_READ_AT_ONCE = 64
_FIRST_LOOK_BYTES = 1 << 16


class FileList:
  """The last part of a listing in JSON: [path, bytes] of each file.

  The listing may lie in a file (`mapped`): beside it, 8 bytes for every 64
  files are in memory, and the 64 that were read last.
  """

  def __init__(self, listing: Buffer, start: int):
    """Takes a listing, and where in it the list of files begins."""
    self._listing, self._start = memoryview(listing), start
    self._starts, files = array.array("q", [start + 1]), 1
    for match in _BETWEEN.finditer(self._listing, start):
      if not files % _READ_AT_ONCE:
        self._starts.append(match.end())
      files += 1
    self._length = 0 if self._listing[start + 1] == ord("]") else files
    self._last: tuple[int, list[tuple[str, int]]] = -1, []

  @classmethod
  def of(cls, files: Iterable[tuple[str, int]]) -> "FileList":
    """A list of these files, which need not all be in memory."""
    rest = iter(files)

    def text() -> Iterator[bytes]:
      between = b"[["
      while some := list(itertools.islice(rest, _ENCODED_AT_ONCE)):
        yield between + json.dumps(some)[1:-1].encode()
        between = b", "
      yield b"]]" if between == b", " else b"[[]]"

    return cls(mapped(text()), 1)

  def after(self, *parts: Any) -> memoryview:
    """What `json.dumps([*parts, files])` gives."""
    head = json.dumps(parts).encode()[:-1]
    return mapped([head, b", ", self._listing[self._start :]])

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, index: int) -> tuple[str, int]:
    if not 0 <= index < self._length:
      raise IndexError(f"{index} is not in [0, {self._length}).")
    group, place = divmod(index, _READ_AT_ONCE)
    last, files = self._last  # One tuple: any number of threads may read.
    if last != group:
      files = self._read(group)
      self._last = group, files
    return files[place]

  def __iter__(self) -> Iterator[tuple[str, int]]:
    groups = range(-(-self._length // _READ_AT_ONCE))
    return itertools.chain.from_iterable(map(self._read, groups))

  def _read(self, group: int) -> list[tuple[str, int]]:
    is_last = group + 1 == len(self._starts)
    end = len(self._listing) if is_last else self._starts[group + 1]
    text = bytes(self._listing[self._starts[group] : end - 2])
    return [(path, size) for path, size in json.loads(b"[%b]" % text)]


def parsed(listing: Buffer) -> tuple[list[Any], FileList]:
  """What is before the files of a listing, and those; ValueError if none is."""
  view, parts, at = memoryview(listing), [], 1
  if view[:2] != b"[[":
    raise ValueError("not a listing of files")
  while view[at : at + 2] != b"[[":
    part, end = _first_value(view[at:])
    parts.append(part)
    at += end + 2
  return parts, FileList(view, at)


def _first_value(text: memoryview) -> tuple[Any, int]:
  """The list that a text in JSON begins with, and where it ends."""
  look = _FIRST_LOOK_BYTES
  while True:
    try:
      return json.JSONDecoder().raw_decode(str(text[:look], "ascii"))
    except ValueError:
      if look >= len(text):
        raise
    look *= 8


def mended(before: Buffer, now: Buffer) -> list[int] | None:
  """Indices at which listings have other sizes; None if names differ."""
  try:
    (of, old), (now_of, images) = parsed(before), parsed(now)
  except ValueError:
    return None  # of another kind of source
  if of != now_of or len(old) != len(images):
    return None
  changed = []
  for i, (then, image) in enumerate(zip(old, images, strict=True)):
    if then[0] != image[0]:
      return None
    if then != image:
      changed.append(i)
  return changed
