"""Faults that any command may meet: kills, damaged files, odd ones."""

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("ONESHOT_DP_KILLS", "2"))
"""Of each command; others are killed the more often, the cheaper that is."""


def damaged(data: bytes, draw: random.Random) -> bytes:
  """A flip, a cut, a swap, zeros, a repeat, or nothing left of some bytes."""
  size = draw.choice((1, 1, 8, 64, 512))
  near = len(data) if draw.random() < 0.7 else min(len(data), 300)
  place, other = (draw.randrange(near) if near else 0 for _ in range(2))
  first, last = sorted((place, other))
  start, gone = data[:place], data[place : place + size]
  rest = data[place + size :]
  match draw.randrange(7):
    case 0 | 1 if data:
      bit = data[place] ^ (1 << draw.randrange(8))
      return start + bytes([bit]) + data[place + 1 :]
    case 2:
      return start
    case 3:
      return start + bytes(len(gone)) + rest
    case 4:
      return start + rest
    case 5:
      return start + data[other : other + len(gone)] + rest
    case _:
      size = min(size, last - first)
      a, b = data[first : first + size], data[last : last + size]
      between = data[first + size : last]
      return data[:first] + b + between + a + data[last + size :]


def damaged_copies(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
  """Nothing, and so many more, none of which is `data`."""
  draw = random.Random(seed)
  yield b""
  while count:
    if (found := damaged(data, draw)) != data:
      count -= 1
      yield found


def odd_files(folder: Path) -> dict[str, Path]:
  """What a file's name may lead to instead of a file."""
  folder.mkdir(parents=True, exist_ok=True)
  names = "fifo", "zero", "directory", "socket", "loop", "sparse"
  places = {name: folder / name for name in names}
  os.mkfifo(places["fifo"])
  places["zero"].symlink_to("/dev/zero")
  places["directory"].mkdir()
  with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(folder):
    listener.bind("socket")  # whose name is short
  places["loop"].symlink_to("loop")
  with places["sparse"].open("wb") as file:
    file.truncate(1 << 42)
  return places


def everything_in(folder: Path) -> set[str]:
  """All names below a folder."""
  return {str(p.relative_to(folder)) for p in folder.rglob("*")}
