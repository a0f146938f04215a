"""Commands that faults are injected into, and what holds after each fault."""

import contextlib
import dataclasses
import json
import math
import pathlib
import re
import stat

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.saved_head.directory import bytes_of
from tests.extract.caches import digest
from tests.extract.image_jobs import write_npz
from tests.faults.workers import Fault, Outcome, Worker
from tests.pipeline.command_line import CONFIG
from tests.pipeline.sample_caches import write_clusters

_TRAIN = (
  "train --cache {place}/train --epsilon 1 --delta 1e-5 --head lamb --out out"
  " --ledger-dir ledgers"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
  """A command, what was run before it, and entries of the ledger that it adds.

  It goes on with what the last of `before` paid for, whose delivery failed, if
  `goes_on`.
  """

  name: str
  line: str
  before: tuple[str, ...] = ()
  goes_on: bool = False
  charges: int = 1

  def prepare(self, worker: Worker, folder: pathlib.Path) -> None:
    """Makes the folder as it is before the command."""
    folder.mkdir(parents=True)
    for line in self.before:
      fault = Fault()
      if self.goes_on:
        trial = folder.with_name("trial")
        trial.mkdir()
        calls = worker.run(trial, line).calls
        at = max(i for i, c in enumerate(calls, 1) if c == "rename /out")
        fault = Fault(at=at, number=5)
      outcome = worker.run(folder, line, fault)
      assert outcome.status == int(self.goes_on), outcome


def scenarios(place: pathlib.Path) -> list[Scenario]:
  """All of them; makes what they read."""
  write_clusters(place / "train")
  write_clusters(place / "test", counts=(20, 20, 20, 20), split="test")
  write_npz(place / "images.npz", 70)
  (place / "config.py").write_text(CONFIG)

  def of_run(
    command: str, flags: str, name: str = "", charges: int = 1
  ) -> Scenario:
    line = (
      f"{command} --cache {place}/train --eval-cache {place}/test {flags} --out"
      " out --ledger-dir ledgers"
    )
    return Scenario(name=name or command, line=line, charges=charges)

  train, flags = _TRAIN.format(place=place), "--epsilons 1 --delta 1e-5"
  of_cache = f"--cache {place}/train --ledger-dir ledgers"
  return [
    Scenario(name="train", line=train),
    of_run("sweep", f"{flags} --baseline", charges=2),
    of_run("sweep", f"{flags} --private-eval 1", "sweep --private-eval", 2),
    Scenario(
      name="extract",
      line=f"extract {place}/config.py --source.path {place}/images.npz --split"
      " train --out out --decode-threads 1",
      charges=0,
    ),
    Scenario(
      name="go on", line=train, before=(train,), goes_on=True, charges=0
    ),
    Scenario(
      name="budget",
      line=f"budget {of_cache}",
      before=(train.replace("--out out", "--out earlier"),),
      charges=0,
    ),
    Scenario(
      name="budget set",
      line=f"budget set {of_cache} --max-epsilon 4 --max-delta 1e-5",
    ),
    of_run("compare", f"{flags} --heads lamb whitened", charges=2),
    of_run("figures", "--epsilons 1 --deltas 1e-5 --num-draws 1"),
    of_run(
      "ablate",
      "--epsilon 1 --delta 1e-5 --axes clip --clip-norms 2",
      charges=2,
    ),
  ]


@dataclasses.dataclass
class State:
  """What there is in a folder, as far as promises are about it.

  `charged` are the ledger's entries, caps included, `delivered` those of the
  heads in `out`, and the same command goes on with `kept`; `names` are of the
  files in `out`, `broken` the promises that it does not keep.
  """

  charged: set[str]
  delivered: list[str]
  kept: list[str]
  names: set[str]
  broken: list[str]


def look(folder: pathlib.Path) -> State:
  """Reads it, and complains of what may never be so."""
  broken: list[str] = []
  out, ledgers = folder / "out", folder / "ledgers"
  try:
    entries = Ledger("pets", ledgers).entries()
  except (InputError, RunError) as error:
    entries = []
    broken.append(f"the ledger cannot be read: {error}")
  charged, record = {e["entry"] for e in entries}, None
  with contextlib.suppress(OSError):
    header = (folder / ".out.unfinished/steps/training.json").read_bytes()
    record = json.loads(header)["name"]
  kept = [e["entry"] for e in entries if record and e.get("record") == record]
  written, delivered = set(), []
  results = {
    "receipt.json": ("composition", "ledger_entry"),
    "results.json": ("evaluation", "ledger_entry"),
  }
  for path in folder.rglob("*.json"):
    section, field = results.get(path.name, ("", ""))
    try:
      name = json.loads(path.read_bytes())[section][field]
    except (ValueError, KeyError):
      continue  # a part of it, or no charge
    written.add(name)
    head = path.parent
    if out not in path.parents:
      continue
    delivered.append(name)
    if path.name != "receipt.json":
      continue
    try:
      bytes_of(head)
      receipt = json.loads(path.read_bytes())
      whole = receipt["mechanism"] and (head / "README.md").stat().st_size
      if not whole or bytes_of(head).head_sha256 not in path.read_text():
        raise ValueError("not the head of its receipt")
    except (OSError, ValueError, KeyError) as error:
      broken.append(f"{head} is not whole: {error}")
  weights = [p for p in folder.rglob("*.safetensors") if p.stat().st_size]
  if written - charged or (weights and not charged):
    broken.append("UNDER-CHARGED: a head without a charge")
  for path in [*ledgers.rglob("*"), *folder.glob(".*.unfinished")]:
    mode = stat.S_IMODE(path.stat().st_mode)
    above = {path.name, *(p.name for p in path.parents)}
    if mode & 0o077 and ".out.unfinished" not in above:
      broken.append(f"{path} has mode {mode:o}")
  if "NOT-PRIVATE" in " ".join(map(str, out.rglob("*"))):
    for path in [out, *out.glob("*.*")]:
      if stat.S_IMODE(path.stat().st_mode) & 0o077:
        broken.append(f"{path} can be read by others")
  return State(
    charged=charged,
    delivered=delivered,
    kept=kept,
    names={
      name
      for name in (digest(out) if out.is_dir() else {})
      if not name.startswith("_incomplete")
    },
    broken=broken,
  )


def of_words(outcome: Outcome) -> list[str]:
  """What is wrong with how a command ended."""
  broken = []
  if outcome.status is None:
    return ["it hangs"]
  if outcome.status not in (0, 1, 2, -9):
    broken.append(f"exit status {outcome.status}")
  if "Traceback" in outcome.said or "Exception ignored" in outcome.said:
    broken.append("a traceback")
  errors = outcome.said.count("oneshot-dp: error: ")
  if errors != (outcome.status in (1, 2)):
    broken.append(f"{errors} errors are told")
  if locked := [p for p in outcome.left_open if "lock" in p or "jsonl" in p]:
    broken.append(f"left locked: {locked}")
  return broken


def left_over(folder: pathlib.Path) -> list[str]:
  """What is there beside results and ledgers.

  A ledger's `.head.tmp` may be: the next charge makes its head of it.
  """
  return [
    str(path.relative_to(folder))
    for path in folder.rglob("*")
    if path.name.endswith((".unfinished", ".part", ".tmp", "_incomplete"))
    and not path.name.endswith(".head.tmp")
  ]


def shape(folder: pathlib.Path) -> tuple:
  """What is there, but for what every run draws anew.

  Names without digests, modes, and sizes: of weights and ledgers to the byte,
  without the zeros of space that was only reserved; of texts, whose numbers are
  longer or shorter, within a fifth.
  """
  found = []
  for path in sorted(folder.rglob("*")):
    size = 0.0
    if path.is_file():
      size = len(path.read_bytes().rstrip(b"\0"))
      if path.suffix in (".json", ".md", ".csv", ".txt", ".svg", ".html"):
        size = round(4 * math.log2(1 + size))
    name = re.sub(r"[0-9a-f]{8,}", "#", str(path.relative_to(folder)))
    found.append((name, path.lstat().st_mode, size))
  return tuple(sorted(found))
