"""Faults that any command may meet: kills, damaged files, odd ones."""

import contextlib
import os
import random
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

KILLS = int(os.environ.get("ONESHOT_DP_KILLS", "2"))
"""Of each command; others are killed the more often, the cheaper that is."""


def damaged(data: bytes, draw: random.Random) -> bytes:
  """A flip, a cut, a swap, zeros, a repeat, or nothing left of some bytes."""
  size = draw.choice((1, 1, 8, 64, 512))
  # What a file begins with is broken more often: much hangs on it.
  near = len(data)
  if draw.random() >= 0.7:
    near = min(near, 300)
  first = draw.randrange(near or 1)
  second = draw.randrange(near or 1)
  hit = slice(first, first + size)
  new = bytearray(data)
  match draw.randrange(7):
    case 0 | 1 if data:
      new[first] ^= 1 << draw.randrange(8)
    case 2:
      del new[first:]
    case 3:
      new[hit] = bytes(len(new[hit]))
    case 4:
      del new[hit]
    case 5:
      new[hit] = data[second : second + len(new[hit])]
    case _:
      _swap(new, min(first, second), max(first, second), size)
  return bytes(new)


def _swap(data: bytearray, low: int, high: int, size: int) -> None:
  """Swaps the bytes at two places, as many as fit between them."""
  size = min(size, high - low)
  kept = data[low : low + size]
  data[low : low + size] = data[high : high + size]
  data[high : high + size] = kept


def damaged_copies(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
  """Nothing, and so many more, none of which is `data`."""
  draw = random.Random(seed)
  yield b""
  while count:
    copy = damaged(data, draw)
    if copy != data:
      count -= 1
      yield copy


def odd_files(folder: Path) -> dict[str, Path]:
  """What a file's name may lead to instead of a file."""
  folder.mkdir(parents=True, exist_ok=True)
  os.mkfifo(folder / "fifo")
  (folder / "zero").symlink_to("/dev/zero")
  (folder / "directory").mkdir()
  with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(folder):
    listener.bind("socket")  # whose name is short
  (folder / "loop").symlink_to("loop")
  with (folder / "sparse").open("wb") as file:
    file.truncate(1 << 42)
  return {path.name: path for path in folder.iterdir()}


def everything_in(folder: Path) -> set[str]:
  """All names below a folder."""
  return {str(p.relative_to(folder)) for p in folder.rglob("*")}


@contextlib.contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
  """EFBIG for what grows beyond it, where a full disk says ENOSPC."""
  usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))
