"""Kills a process at every step of an append; run by chained_file_test.

A script of its own, so that it can fork before JAX has any threads. Every call
that changes or flushes a file is a step: the process ends (SIGKILL) just before
it, or, within a write, when half of it is done.
"""

import json
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from oneshot_dp.pipeline.ledger.chained_file import ChainedFile

IDENTITY = {"dataset": "pets"}
NAME = "pets.jsonl"
_STEPS = ("ftruncate", "write", "fsync", "replace", "mkdir")


class Killer:
  """Ends the process at step `at`; counts the steps where that is never."""

  def __init__(self, at: float):
    self.at, self.steps = at, 0
    self.names: list[str] = []
    for name in _STEPS:
      setattr(os, name, self._wrap(name, getattr(os, name)))
    self._open = os.open
    setattr(os, "open", self._opening)  # noqa: B010 (its type is another)

  def _opening(self, path: Any, flags: int, *args: int) -> int:
    if flags & os.O_CREAT:
      self._step("open")
    return self._open(path, flags, *args)

  def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any, **options: Any) -> Any:
      if name == "write":
        # A step more: half of it is there.
        if self.steps + 1 == self.at:
          call(args[0], args[1][: len(args[1]) // 2])
        self._step("half a write")
      self._step(name)
      return call(*args, **options)

    return step

  def _step(self, name: str) -> None:
    self.steps += 1
    self.names.append(name)
    if self.steps == self.at:
      os.kill(os.getpid(), signal.SIGKILL)


def append(folder: pathlib.Path, name: str, at: float = float("inf")) -> bool:
  """Appends in a process that is killed at a step; whether it returned."""
  pid = os.fork()
  if not pid:
    killer = Killer(at)
    with ChainedFile(folder / NAME, IDENTITY).locked() as chain:
      chain.append({"name": name})
    # What is written from here on was "released".
    (folder / "steps.json").write_text(json.dumps(killer.names))
    os._exit(0)
  _, status = os.waitpid(pid, 0)
  assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
  return status == 0


def steps(folder: pathlib.Path) -> list[str]:
  """The steps of the last append that returned."""
  return json.loads((folder / "steps.json").read_text())


def crash_everywhere(folder: pathlib.Path, finished: int) -> dict[str, Any]:
  """After `finished` appends, kills one, and in every state of that another.

  (Every second step of the other: the rest are the same states again.)

  Returns:
    For each folder of a crashed file: which appends returned, and which were
    begun.
  """
  base = folder / f"base-{finished}"
  base.mkdir()
  returned = [f"finished {i}" for i in range(finished)]
  assert all(append(base, name) for name in returned)
  found = {}
  for first in range(1, _count(base) + 1):
    once = _copy(base, folder / f"{finished}-{first}")
    assert not append(once, "killed first", first)
    begun = [*returned, "killed first"]
    found[once.name] = {"returned": returned, "begun": begun}
    for second in range(1 + first % 2, _count(once) + 1, 2):
      twice = _copy(once, folder / f"{finished}-{first}-{second}")
      assert not append(twice, "killed second", second)
      found[twice.name] = {
        "returned": returned,
        "begun": [*begun, "killed second"],
      }
  return found


def _count(folder: pathlib.Path) -> int:
  """How many steps an append takes in this state."""
  trial = _copy(folder, folder.with_name("trial"))
  assert append(trial, "trial")
  count = len(steps(trial))
  shutil.rmtree(trial)
  return count


def _copy(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
  shutil.copytree(source, target)
  return target


if __name__ == "__main__":
  place = pathlib.Path(sys.argv[1])
  states = crash_everywhere(place, 0) | crash_everywhere(place, 2)
  (place / "states.json").write_text(json.dumps(states))
