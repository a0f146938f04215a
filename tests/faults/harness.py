"""Faults that any command may meet: kills, damaged files, odd ones."""

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

KILLS = int(os.environ.get("ONESHOT_DP_KILLS", "2"))
"""Of each command; others are killed the more often, the cheaper that is."""


def damaged(data: bytes, draw: random.Random) -> bytes:
  """A flip, a cut, a swap, zeros, a repeat, or nothing left of some bytes."""
  size = draw.choice((1, 1, 8, 64, 512))
  near = len(data) if draw.random() < 0.7 else min(len(data), 300)
  place, other = (draw.randrange(near) if near else 0 for _ in range(2))
  new, gone = bytearray(data), slice(place, place + size)
  match draw.randrange(7):
    case 0 | 1 if data:
      new[place] ^= 1 << draw.randrange(8)
    case 2:
      del new[place:]
    case 3:
      new[gone] = bytes(len(new[gone]))
    case 4:
      del new[gone]
    case 5:
      new[gone] = data[other : other + len(new[gone])]
    case _:
      a, b = sorted((place, other))
      one, two = (slice(x, x + min(size, b - a)) for x in (a, b))
      new[two], new[one] = new[one], new[two]
  return bytes(new)


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
