"""Fails every system call that writes, renames, syncs or locks, one by one.

    python -m tests.faults.injection [--points N]

Each of the commands is run with one of its calls failing: with ENOSPC (once,
and from then on), EIO, EINTR, EACCES, and with the process killed before the
call or half way through a write. After each, what `oneshot-dp` promises is
looked at, and the command is run again. Prints what was tried, what came of it
and every broken promise; of N points of each command, or of all.
"""

import argparse
import collections
import dataclasses
import errno
import logging
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tests.faults.scenarios import (
  Scenario,
  State,
  left_over,
  look,
  of_words,
  scenarios,
  shape,
)
from tests.faults.workers import (
  KILL_BEFORE,
  KILL_HALFWAY,
  STOP_BEFORE,
  STOP_HALFWAY,
  Fault,
  Outcome,
  Worker,
  import_all,
)

ROOT = pathlib.Path(__file__).parents[2]
_SHOWN, _PROGRESS = 8, 100
FAULTS = {
  "ENOSPC": (errno.ENOSPC, False),
  "ENOSPC, lasting": (errno.ENOSPC, True),
  "EIO": (errno.EIO, False),
  "EINTR": (errno.EINTR, False),
  "EACCES": (errno.EACCES, False),
  "SIGKILL": (STOP_BEFORE, False),
  "SIGKILL halfway": (STOP_HALFWAY, False),
}
_REAL_KILLS = 20
"""One kill in so many is by the signal, of a process of its own. At the others
the disk stops as it is, and the process may live on: it need not be warmed."""


@dataclasses.dataclass(kw_only=True)
class Trials:
  """The points of one command, each in a folder of its own."""

  scenario: Scenario
  place: pathlib.Path
  worker: Worker
  counts: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  broken: dict[str, list[str]] = dataclasses.field(
    default_factory=lambda: collections.defaultdict(list)
  )
  seen: dict[tuple, tuple[list[str], list[str]]] = dataclasses.field(
    default_factory=dict
  )
  """What came of running it again, of what looks alike."""

  def run(self, most: int | None) -> None:
    """Tries `most` points, or all."""
    sound = self.place / "sound"
    self.base = self.place / "base"
    self.scenario.prepare(self.worker, self.base)
    shutil.copytree(self.base, sound)
    first = self.worker.run(sound, self.scenario.line)
    assert first.status == 0, first
    self.calls, self.expected = first.calls, look(sound)
    self.before = look(self.base)
    points = list(self._points())
    if most is not None:
      points = random.Random(0).sample(points, min(most, len(points)))
    for number, (name, at) in enumerate(points):
      self._try(name, at)
      if number % _PROGRESS == _PROGRESS - 1:
        so_far = f"{number + 1} of {len(points)}, {len(self.broken)} broken"
        print(f"{self.scenario.name}: {so_far}", file=sys.stderr, flush=True)
    shutil.rmtree(self.place)

  def _points(self) -> Iterator[tuple[str, int]]:
    for at, call in enumerate(self.calls, start=1):
      for name in FAULTS:
        if name != "SIGKILL halfway" or "write" in call.split()[0]:
          yield name, at

  def _try(self, name: str, at: int) -> None:
    folder = self.place / "point"
    shutil.copytree(self.base, folder, symlinks=True)
    number, lasts = FAULTS[name]
    dies = number < 0
    worker = self.worker
    if dies and at % _REAL_KILLS == 0:
      number = KILL_BEFORE if number == STOP_BEFORE else KILL_HALFWAY
      worker = Worker()
      self.counts["kills by the signal"] += 1
    fault = Fault(at=at, number=number, lasts=lasts)
    outcome = worker.run(folder, self.scenario.line, fault)
    if worker is not self.worker:
      worker.close()
    elif dies and outcome.status is not None:
      outcome = Outcome(status=-9, said="", calls=[], left_open=[])
    self.counts["points"] += 1
    self.counts["ended well" if outcome.status == 0 else f"{name}"] += 1
    broken = [
      *of_words(outcome),
      *self._after(folder, outcome),
    ]
    where = f"{name} at {self.calls[at - 1]} ({at}), status {outcome.status}"
    for promise in broken:
      found = self.broken[promise.replace(str(folder), "")]
      found.append(where if found else f"{where}: {outcome.said[-300:]!r}")
      print(promise, found[-1], file=sys.stderr, flush=True)
    shutil.rmtree(folder)

  def _after(self, folder: pathlib.Path, outcome: Outcome) -> Iterator[str]:
    state = look(folder)
    yield from state.broken
    found = {*state.delivered, *state.kept}
    new = state.charged - self.before.charged
    of_heads = self.scenario.name not in ("budget set", "extract")
    if of_heads and (lost := len(new - found)):
      yield f"{lost} charges without a head, or what it is made of"
    if outcome.status == 0:
      if state.names != self.expected.names:
        yield f"not whole: {self.expected.names ^ state.names}"
      if len(new) != self.scenario.charges:
        yield f"{len(new)} charges"
    elif state.names and state.names != self.expected.names and of_heads:
      yield f"half there: {self.expected.names ^ state.names}"
    if outcome.status or left_over(folder):
      found = outcome.status, shape(folder)
      if found not in self.seen:
        self.seen[found] = self._again(folder, state), left_over(folder)
        self.counts["run again"] += 1
      promises, left = self.seen[found]
      yield from promises
      for each in left:
        if each not in outcome.said:
          yield f"left, and not named: {each}"

  def _again(self, folder: pathlib.Path, before: State) -> list[str]:
    """Runs it once more: it goes on with what is paid for."""
    again = self.worker.run(folder, self.scenario.line)
    whole = before.names == self.expected.names
    if again.status and not (whole and "already holds" in again.said):
      return [f"again: {again.status} {again.said!r}"]
    after = look(folder)
    broken = [*after.broken, *of_words(again)]
    if missing := {*before.delivered, *before.kept} - {*after.delivered}:
      broken.append(f"{len(missing)} heads are lost by running it again")
    if before.kept and after.charged != {*before.charged, *after.delivered}:
      broken.append("what is paid for was charged again")
    if after.names != self.expected.names:
      broken.append(f"again, not whole: {after.names ^ self.expected.names}")
    return broken


def try_all(place: pathlib.Path, most: int | None, names: list[str]) -> int:
  """Prints what came of it; returns how many promises were broken."""
  logging.disable()  # Beam's, of what is not installed
  import_all()
  total: collections.Counter[str] = collections.Counter()
  worker = Worker()
  for scenario in scenarios(place / "inputs"):
    if names and scenario.name not in names:
      continue
    trials = Trials(
      scenario=scenario, place=place / scenario.name, worker=worker
    )
    trials.run(most)
    words = ", ".join(f"{n} {what}" for what, n in trials.counts.items())
    print(f"{scenario.name}: {len(trials.calls)} calls; {words}", flush=True)
    for promise, points in trials.broken.items():
      print(f"BROKEN at {len(points)}: {promise}")
      print(*points[:_SHOWN], sep="\n", flush=True)
    total += trials.counts
    total["broken"] += sum(map(len, trials.broken.values()))
  worker.close()
  print(f"all: {total['points']} points, {total['broken']} broken promises")
  return total["broken"]


def compiler() -> str:
  """The machine's; empty if it has none."""
  return shutil.which("cc") or shutil.which("gcc") or ""


def compiled(place: pathlib.Path) -> pathlib.Path:
  """The preload library."""
  library = place / "failing_calls.so"
  source = pathlib.Path(__file__).with_name("failing_calls.c")
  words = [compiler(), "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"]
  subprocess.run(words, check=True)
  return library


def main() -> int:
  """Starts itself again, with the library before libc."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--points", type=int)
  parser.add_argument("--commands", nargs="*", default=[])
  asked = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name).resolve()
    if "LD_PRELOAD" in os.environ:
      return min(try_all(place, asked.points, asked.commands), 1)
    library = compiled(place)
    words = [sys.executable, "-m", "tests.faults.injection", *sys.argv[1:]]
    environment = os.environ | {
      "LD_PRELOAD": str(library),
      "JAX_PLATFORMS": "cpu",
      "OPENBLAS_NUM_THREADS": "1",
      "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    return subprocess.run(
      words, env=environment, cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
  sys.exit(main())
