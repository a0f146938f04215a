"""What a run has paid for and released so far, so that another process goes on.

FOLDER/training.json      what it is known again by; its charges name its digest
FOLDER/000000000-mean …   its releases, one by one

The folder is its owner's alone (0700, 0600) and beside --out until that is
there. A release is whole and on the disk before anything is made of it, and no
file is ever written over. The same command makes the rest: all else is a
function of releases, or of rows that it reads again.

Formal guarantees: a release that is kept is never drawn again, nor a charge
made again. A release that is not kept was seen by nobody: its values were in
memory and in a file without a name that is read; why drawing it anew costs
nothing is in PRIVACY.md, section 3.
"""

import collections
import dataclasses
import hashlib
import importlib.metadata
import json
import secrets
import shutil
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.extract.storage.durable_files import (
  TEMPORARY_SUFFIX,
  disk_errors,
  json_bytes,
  sync,
)
from oneshot_dp.extract.storage.local import LocalStore
from oneshot_dp.extract.storage.typed_json import OBJECT, read_json
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import Trainer
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger, charge_aloud
from oneshot_dp.pipeline.training.kept_releases import (
  KeptNoise,
  KeptReleases,
  changed,
  releases_in,
)
from oneshot_dp.pipeline.training.request import estimate

_HEADER = "training.json"


class Payments:
  """How a run charges ledgers and draws noise; it keeps nothing to go on with.

  Attributes:
    note: what it asks for, or goes on with, in a line.
  """

  note = ""

  def source(self, seed: int | None) -> NoiseSource:
    """Noise of a seed, or of the operating system."""
    return NoiseSource(seed)

  def check(
    self, ledger: Ledger, *charges: Charge, at_once: bool = True
  ) -> None:
    """Finds what `pay` would refuse; see `Ledger.check`."""
    ledger.check(*charges, at_once=at_once)

  def pay(
    self, ledger: Ledger, *charges: Charge, aloud: bool = True
  ) -> list[str]:
    """Charges a ledger; returns the names of the entries."""
    return (charge_aloud if aloud else Ledger.charge)(ledger, *charges)


UNRECORDED = Payments()


class Record(Payments):
  """The charges and releases of a run, each made once, in their order.

  A run that goes on asks for the same in the same order, and is given what
  there is.
  """

  def __init__(
    self, folder: Path, header: Mapping[str, Any], room: int, *, goes_on: bool
  ):
    self._folder = folder
    self._header = header
    self._room = room
    self._goes_on = goes_on
    self._releases = KeptReleases(folder, header["name"])
    self._asked_for = collections.Counter[Path]()  # charges, of each ledger

  @classmethod
  def find(
    cls,
    folder: Path,
    ledger: Ledger,
    parts: Sequence[tuple[Trainer, ReleasePlan]],
    noise_seed: int | None,
    info: CacheInfo,
    also: Mapping[str, Any] = types.MappingProxyType({}),
  ) -> Self:
    """The record in a folder if it was charged, or else a new one.

    `also` is what else the run was asked for, which must be the same.

    InputError: it asks for more than this machine has, or what is there is of
    another run, or another ledger has its charge.
    """
    note = estimate(parts, info)
    asks = [trainer.resumes_by(plan) for trainer, plan in parts]
    asked = {
      "version": importlib.metadata.version("oneshot-dp"),
      "noise_seed": noise_seed,
      "trainings": [
        {"epsilons": plan.epsilons, "delta": plan.delta, **each.settings}
        for each, (_, plan) in zip(asks, parts, strict=True)
      ],
      "also": dict(also),
      "ledger": str(ledger.path.absolute()),
    }
    room = sum(each.num_bytes for each in asks)
    if (folder / _HEADER).exists():
      there = read_json(
        folder / _HEADER,
        _Header,
        "restore it, or remove the folder and pay anew",
      )
      asked |= {"name": there["name"], "nonce": there["nonce"]}
      is_first = there["ledger"] == asked["ledger"]
      asked["ledger"] = there["ledger"]  # which may be elsewhere now
      if any(e.get("record") == there["name"] for e in ledger.entries()):
        # What a person asked for is named before what follows from it.
        read = _as_read(asked)
        for see in _in_short, dict:
          _refuse(folder, _different(see(there), see(read), "trainings"))
        if there["name"] != _name(there):
          raise changed(folder / _HEADER)
        for torn in folder.glob(f"*{TEMPORARY_SUFFIX}"):
          torn.unlink()
        found = cls(folder, there, room, goes_on=True)
        found.note = f"going on: it is paid for, {kept(folder)}"
        return found
      if releases_in(folder) or not is_first:
        raise InputError(
          f"{ledger.path} was not charged for what is in {folder}, which asked"
          f" {there['ledger']}; say where the ledger is with --ledger-dir, or"
          " remove the folder and pay anew."
        )
      shutil.rmtree(folder)  # stopped before the charge
    asked["nonce"] = secrets.token_hex(32)
    asked["name"] = _name(asked)
    new = cls(folder, asked, room, goes_on=False)
    new.note = note
    return new

  def source(self, seed: int | None) -> NoiseSource:
    """Noise of which every release is kept."""
    return KeptNoise(seed, self._releases)

  def check(
    self, ledger: Ledger, *charges: Charge, at_once: bool = True
  ) -> None:
    """Finds what `pay` would refuse."""
    if left := charges[len(self._paid(ledger, charges)) :]:
      ledger.check(*left, at_once=at_once)

  def pay(
    self, ledger: Ledger, *charges: Charge, aloud: bool = True
  ) -> list[str]:
    """Charges a ledger for what it was not charged for; the names of all.

    InputError: rows or costs are not those paid for. RunError: there is not
    room for all releases, and nothing is charged.
    """
    there = self._paid(ledger, charges)
    name = {"record": self._header["name"]}
    if left := [
      dataclasses.replace(each, facts={**each.facts, **name})
      for each in charges[len(there) :]
    ]:
      self._releases.check_all_given(ledger.path)
      is_first = not (self._folder / _HEADER).exists()
      try:
        if is_first:
          header = json_bytes(self._header)
          LocalStore(self._folder).put(_HEADER, header, create=True)
          self._releases.make_room(self._room)
          with disk_errors(self._folder):
            for folder in (self._folder.parent, self._folder.parent.parent):
              sync(folder)  # both may be new
        there += super().pay(ledger, *left, aloud=aloud)
      except BaseException:
        if is_first and not self._entries(ledger):
          shutil.rmtree(self._folder, ignore_errors=True)
        raise
    self._asked_for[ledger.path] += len(charges)
    if self._goes_on and any(map(ledger.published, there)):
      self._releases.why_no_more = (
        f"heads of this charge left already, as {ledger.path} knows, and not"
        f" all that they were made of is in {self._folder}, which seems to be"
        " a copy: one charge pays for one release. Remove it, and pay anew."
      )
    return there

  def _entries(self, ledger: Ledger) -> list[dict[str, Any]]:
    name = self._header["name"]
    return [e for e in ledger.entries() if e.get("record") == name]

  def _paid(self, ledger: Ledger, charges: Sequence[Charge]) -> list[str]:
    """Names of the charges that an earlier process made."""
    if not self._goes_on:
      return []
    entries = self._entries(ledger)[self._asked_for[ledger.path] :]
    # An entry says more: when, and the rows' keys.
    for entry, charge in zip(entries, charges, strict=False):
      asked = _as_read(charge.as_json())
      paid = {field: entry.get(field) for field in asked}
      _refuse(self._folder, _different(paid, asked, "charge"))
    return [entry["entry"] for entry in entries[: len(charges)]]


def kept(folder: Path) -> str:
  """How far a run is, such as "7 releases are kept"; "" if there is none."""
  if not (folder / _HEADER).exists():
    return ""
  if not (count := len(releases_in(folder))):
    return "nothing is released yet"
  return f"{count} release{'s are' if count != 1 else ' is'} kept"


class _Header(TypedDict):
  version: str
  noise_seed: int | None
  trainings: list[OBJECT]
  also: OBJECT
  ledger: str
  nonce: str
  name: str


def _name(header: Mapping[str, Any]) -> str:
  """A digest that binds a header, and hides it behind the nonce in it."""
  said = {key: header[key] for key in header.keys() - {"name"}}
  return hashlib.sha256(json_bytes(said)).hexdigest()


def _as_read(value: Mapping[str, Any]) -> dict[str, Any]:
  return json.loads(json_bytes(value))


def _refuse(folder: Path, different: set[str]) -> None:
  """Refuses rows, costs or settings other than those paid for."""
  if "version" in different:
    raise InputError(
      f"{folder} is of a run of another version that was charged"
      f" ({kept(folder)}): go on with it, or name another place with --out."
    )
  if different:
    raise InputError(
      f"{folder} is of a run that was charged ({kept(folder)}), and this is"
      f" another, by its {', '.join(sorted(different)[:4])}: run the very same"
      " command to go on with it, or name another place with --out."
    )


def _in_short(header: Mapping[str, Any]) -> list[Any]:
  """What a person asked for, without what follows from it."""
  return [
    {name: value for name, value in each.items() if name != "mechanisms"}
    for each in header["trainings"]
  ]


def _different(one: Any, other: Any, name: str) -> set[str]:
  """Names of what is not the same in two values of JSON."""
  if isinstance(one, dict) and isinstance(other, dict):
    return {
      found
      for key in one.keys() | other.keys()
      for found in _different(one.get(key), other.get(key), key)
    }
  lists = isinstance(one, list) and isinstance(other, list)
  if lists and len(one) == len(other):
    pairs = zip(one, other, strict=True)
    return {found for a, b in pairs for found in _different(a, b, name)}
  return set() if one == other else {name}
