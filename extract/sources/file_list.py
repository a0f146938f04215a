"""Names and sizes of many files, in the bytes of their listing."""

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Int64

# A quote in a string is written \", and no image's name ends in "], [".
_ENCODED_AT_ONCE = 1000
_BETWEEN = re.compile(rb'\d\], (?=\[")')


class FileList:
  """The last part of a listing in JSON: [path, bytes] of each file.

  Beside those bytes it takes 8 more for each file, and no object.
  """

  def __init__(self, listing: bytes, start: int):
    """Takes a listing, and where in it the list of files begins."""
    self._listing, self._start = listing, start
    found = _BETWEEN.finditer(listing, start)
    starts = itertools.chain([start + 1], (match.end() for match in found))
    self._starts: Int64[np.ndarray, " n"] = np.fromiter(starts, np.int64)
    if listing.startswith(b"]", start + 1):
      self._starts = self._starts[:0]

  @classmethod
  def of(cls, files: Iterable[tuple[str, int]]) -> "FileList":
    """A list of these files, which need not all be in memory."""
    rest, text = iter(files), io.BytesIO()
    text.write(b"[[")
    while some := list(itertools.islice(rest, _ENCODED_AT_ONCE)):
      text.write(b", " * (text.tell() > 2) + json.dumps(some)[1:-1].encode())
    text.write(b"]]")
    return cls(text.getvalue(), 1)

  def after(self, *parts: Any) -> bytes:
    """What `json.dumps([*parts, files])` gives."""
    head = json.dumps(parts).encode()[:-1]
    return b"".join([head, b", ", memoryview(self._listing)[self._start :]])

  def __len__(self) -> int:
    return len(self._starts)

  def __getitem__(self, index: int) -> tuple[str, int]:
    start, end = self._starts[index], len(self._listing) - 2
    if index + 1 < len(self):
      end = self._starts[index + 1] - 2
    path, size = json.loads(self._listing[start:end])
    return path, size

  def __iter__(self) -> Iterator[tuple[str, int]]:
    return map(self.__getitem__, range(len(self)))


def parsed(listing: bytes) -> tuple[list[Any], FileList]:
  """What is before the files of a listing, and those; ValueError if none is."""
  text, at = listing.decode(), 1
  if not text.startswith("[["):
    raise ValueError("not a listing of files")
  parts, decode = [], json.JSONDecoder().raw_decode
  while not text.startswith("[[", at):
    part, end = decode(text, at)
    parts.append(part)
    at = end + 2
  del text  # as large as the listing
  return parts, FileList(listing, at)


def mended(before: bytes, now: bytes) -> list[int] | None:
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
