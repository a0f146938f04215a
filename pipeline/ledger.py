"""What has been spent on each private data set.

One append-only file of JSON lines per data set, whatever the backbone of the
cache; each line carries the SHA-256 of the line before it. A release is
charged, and the charge is on disk, before its noise is drawn: a crash costs
budget, never privacy.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dp_accounting import NeighboringRelation

from configs.errors import InputError, RunError
from linear_dp import accounting
from linear_dp.noise_source import NoiseSource
from linear_dp.release import BASELINE_NOISE, ReleasePlan

_FIRST = "0" * 64


def default_ledger_dir() -> Path:
  """$ONESHOT_DP_LEDGER_DIR, or a folder in the user's state folder."""
  if chosen := os.environ.get("ONESHOT_DP_LEDGER_DIR"):
    return Path(chosen)
  state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
  return Path(state) / "oneshot-dp" / "ledgers"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
  """The composition of the private releases in a ledger.

  Attributes:
    charges: how many entries there are, private or not.
    noise_multiplier: σ of the one Gaussian release that they amount to; None
      when nothing private has been released.
    not_private: charges for baselines and for noise from a seed, which nothing
      can compose.
  """

  charges: int
  noise_multiplier: float | None
  not_private: int

  def epsilon(self, delta: float) -> float:
    """ε spent at δ, rounded up; 0 when nothing was released."""
    if self.noise_multiplier is None:
      return 0.0
    return accounting.epsilon_of(self.noise_multiplier, delta)


class Ledger:
  """The ledger of one private data set, all of its versions and splits.

  Splits share it because what is called a split may overlap another one, or be
  another one under a new name; the price is that releases from disjoint splits
  are added up where they need not be.

  Formal guarantees: `charge` returns only after its line is flushed to disk;
  concurrent processes take turns by a file lock; a line that was edited,
  dropped in the middle or reordered is found by the hash chain at the next use.
  A torn last line belongs to a charge that never returned, so nothing was
  released for it, and the next charge removes it.

  Args:
    dataset: public name of the data set.
    directory: where ledgers are kept; None is `default_ledger_dir()`.
  """

  def __init__(self, dataset: str, directory: Path | None = None):
    self._identity = {"dataset": dataset}
    name = re.sub(r"[^A-Za-z0-9]+", "_", dataset).strip("_")
    digest = hashlib.sha256(_canonical(self._identity)).hexdigest()[:12]
    directory = directory or default_ledger_dir()
    self.path = directory / f"{name}-{digest}.jsonl"

  def entries(self) -> list[dict[str, Any]]:
    """All charges, oldest first, after checking the chain.

    Raises:
      InputError: the file was damaged or edited.
      RunError: it cannot be read.
    """
    try:
      content = self.path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
      return []
    except OSError as error:
      raise RunError(
        f"The ledger {self.path} cannot be read: {error.strerror}."
      ) from error
    return self._parse(content)[0]

  def charge(
    self, plan: ReleasePlan, source: NoiseSource, **details: Any
  ) -> str:
    """Writes a plan's cost to disk; call it before drawing any noise.

    Args:
      plan: the releases that are about to be made.
      source: the noise they will use.
      **details: public facts to keep with the entry (the cache, the outputs).

    Returns:
      The SHA-256 of the entry, its name in receipts.

    Raises:
      InputError: the ledger is damaged.
      RunError: the ledger cannot be written, so nothing may be released.
    """
    cost = {
      "epsilons": list(plan.noise_multipliers),
      "delta": plan.delta,
      "neighboring_relation": plan.neighboring_relation.name,
      "order": plan.order,
      "num_draws": plan.num_draws,
      "noise_multipliers": list(plan.charged_noise_multipliers),
      "composed_epsilon": plan.composed_epsilon,
      "noise_source": source.description,
      "private": source.is_private,
      **details,
    }
    return self._write(cost)

  def record_baseline(self, **details: Any) -> str:
    """Notes, before it happens, that the exact gradient leaves: NOT PRIVATE.

    Args:
      **details: public facts to keep with the entry.

    Returns:
      The SHA-256 of the entry.
    """
    return self._write(
      {"private": False, "noise_source": BASELINE_NOISE, **details}
    )

  def check_usable(self) -> None:
    """Finds a ledger that is damaged, or cannot be written, before any work.

    Raises:
      InputError: it was damaged or edited.
      RunError: it cannot be written.
    """
    self.entries()
    with self._disk_errors():
      os.close(self._open())

  def _write(self, facts: dict[str, Any]) -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with self._disk_errors():
      return self._append(self._identity | {"time": now} | facts)

  @contextlib.contextmanager
  def _disk_errors(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise RunError(
        f"The ledger {self.path} cannot be written ({error.strerror}), so"
        " nothing is released; free or name another place with --ledger-dir."
      ) from error

  def _open(self) -> int:
    self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

  def _append(self, entry: dict[str, Any]) -> str:
    """Adds a line under the file lock; returns when it is on the disk."""
    with os.fdopen(self._open(), "r+b") as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      entries, whole = self._parse(file.read())
      previous = entries[-1]["entry"] if entries else _FIRST
      linked = entry | {"previous": previous}
      linked["entry"] = _digest(linked)
      file.truncate(whole)
      file.seek(whole)
      file.write(_canonical(linked) + b"\n")
      file.flush()
      os.fsync(file.fileno())
      _sync_directory(self.path.parent)
      return linked["entry"]

  def spending(self, relation: NeighboringRelation) -> Spending:
    """Composes the charges, Gaussian releases, through Σσ⁻².

    A charge made under another neighbouring relation counts by its noise: σ is
    in units of the sensitivity, which is twice as large for REPLACE_ONE.
    """
    entries = self.entries()
    private = [e for e in entries if e["private"]]
    sigmas = [
      sigma
      * _removals(NeighboringRelation[e["neighboring_relation"]])
      / _removals(relation)
      for e in private
      for sigma in e["noise_multipliers"]
    ]
    return Spending(
      charges=len(entries),
      noise_multiplier=accounting.compose(sigmas) if sigmas else None,
      not_private=len(entries) - len(private),
    )

  def _parse(self, content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The entries, and how many bytes the whole lines take."""
    whole = content.rfind(b"\n") + 1
    entries, previous = [], _FIRST
    for number, line in enumerate(content[:whole].splitlines(), start=1):
      entry = self._sound_entry(line, previous)
      if entry is None:
        raise InputError(
          f"{self.path}, line {number}: the entry was damaged or edited;"
          " restore the ledger from a backup, for what was spent is unknown."
        )
      entries.append(entry)
      previous = entry["entry"]
    return entries, whole

  def _sound_entry(self, line: bytes, previous: str) -> dict[str, Any] | None:
    """The entry of a line; None unless it was written after `previous`."""
    try:
      entry = json.loads(line)
      sound = (
        entry["previous"] == previous
        and entry["entry"] == _digest(entry)
        and self._identity.items() <= entry.items()
      )
    except (ValueError, TypeError, KeyError, AttributeError):
      return None
    return entry if sound else None


def _removals(relation: NeighboringRelation) -> int:
  """Examples that differ between neighbours: one out, one out and one in."""
  return 2 if relation is NeighboringRelation.REPLACE_ONE else 1


def _canonical(value: dict[str, Any]) -> bytes:
  return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(entry: dict[str, Any]) -> str:
  unsigned = {k: v for k, v in entry.items() if k != "entry"}
  return hashlib.sha256(_canonical(unsigned)).hexdigest()


def _sync_directory(directory: Path) -> None:
  """Makes the name of a new file as durable as its content."""
  descriptor = os.open(directory, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
