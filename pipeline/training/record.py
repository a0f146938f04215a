"""What a paid training has released so far, so that another process goes on.

FOLDER/training.json   what it is known again by; its charge names it
FOLDER/000000-mean …   each release: a SHA-256 of it and all before, its values

The folder is its owner's alone (0700, 0600) and lies where heads are kept until
they are delivered. A release is whole and on the disk before anything is made
of it, and no file is ever written over.

Formal guarantees: a release that is kept is never drawn again. One that is not
was seen by nobody: its values were in memory and in a file without a name that
is read; why drawing it anew costs nothing is in PRIVACY.md, section 3.
"""

import hashlib
import importlib.metadata
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.durable_files import (
  TEMPORARY_SUFFIX,
  disk_errors,
  json_bytes,
  take_room,
)
from oneshot_dp.extract.storage.local import LocalStore
from oneshot_dp.extract.storage.typed_json import OBJECT, read_json
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import Resumable
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger

_HEADER = "training.json"
_ROOM = "room"
_DIGEST = 32


class Record:
  """The releases of one training, which a charge of a ledger names.

  Attributes:
    name: random, of the training; kept with each of its charges.
    entries: names of its charges in the ledger; empty until it was charged.
    told: how far it is, for people.
  """

  def __init__(
    self,
    folder: Path,
    header: Mapping[str, Any],
    entries: Sequence[str],
    asked: Mapping[str, Any],
  ):
    self._folder = folder
    self._header = header
    self._asked = asked
    self._kept = _releases(folder)
    self._next = 0
    self.name: str = header["name"]
    self._digest = _chained(b"", self.name.encode())
    self.entries = list(entries)

  @classmethod
  def find(
    cls,
    folder: Path,
    ledger: Ledger,
    trainings: Sequence[Resumable | None],
    noise_seed: int | None,
  ) -> "Record | None":
    """The record in a folder if it was charged, or else a new one.

    `trainings` are those of the run, None of which cannot go on; then there is
    no record. InputError: another ledger has its charge.
    """
    asked = {
      "version": importlib.metadata.version("oneshot-dp"),
      "noise_seed": noise_seed,
      "step": [each and each.step for each in trainings],
      "num_steps": sum(each.num_steps for each in trainings if each),
      "num_bytes": sum(each.num_bytes for each in trainings if each),
      "trainings": [each and each.settings for each in trainings],
    }
    if (folder / _HEADER).exists():
      there = _header(folder)
      paid = _charges(ledger, there["name"])
      if not paid and _releases(folder):
        raise InputError(
          f"{ledger.path} was not charged for {kept_steps(folder)} that are"
          f" kept in {folder}; say where the ledger is with --ledger-dir."
        )
      if paid:
        asked["name"] = there["name"]
        return cls(folder, there, paid, _as_read(asked))
      shutil.rmtree(folder)  # stopped before the charge
    if not all(trainings):
      return None
    asked["name"] = secrets.token_hex(32)
    return cls(folder, asked, (), asked)

  @property
  def told(self) -> str:
    return kept_steps(self._folder)

  @property
  def source(self) -> NoiseSource:
    """Noise of which every release is kept."""
    return _RecordedNoise(self._header["noise_seed"], self)

  def check_same(self, ledger: Ledger, charges: Sequence[Charge]) -> None:
    """Refuses rows, costs or settings other than those paid for."""
    of_ledger = {entry["entry"]: entry for entry in ledger.entries()}
    paid = [of_ledger[name] for name in self.entries]
    asked = [_as_read(charge.as_json()) for charge in charges]
    if len(paid) == len(asked):  # an entry says more: when, and the rows' keys
      pairs = zip(paid, asked, strict=True)
      paid = [{name: entry.get(name) for name in one} for entry, one in pairs]
    trainings = (_in_short(self._header), _in_short(self._asked))
    for one, other in (trainings, (paid, asked), (self._header, self._asked)):
      if different := _different(one, other, "trainings"):
        raise InputError(
          f"{self._folder} has {self.told} of a training that was charged, and"
          f" this is another, by its {', '.join(sorted(different)[:4])}: run"
          " the very same command to go on with it, or name another place with"
          " --out."
        )
    for torn in self._folder.glob(f"*{TEMPORARY_SUFFIX}"):
      torn.unlink()

  def paid(self, ledger: Ledger, pay: Callable[[], list[str]]) -> list[str]:
    """Names of the charges, which are made now if they were not before.

    RunError: there is not room for all releases; nothing is charged.
    """
    if self.entries:
      return self.entries
    try:
      header = json_bytes(self._header)
      LocalStore(self._folder).put(_HEADER, header, create=True)
      with disk_errors(self._folder, OverflowError):  # absurdly many steps
        take_room(self._folder / _ROOM, self._header["num_bytes"])
      self.entries = pay()
    except BaseException:
      if not _charges(ledger, self.name):
        shutil.rmtree(self._folder, ignore_errors=True)
      raise
    return self.entries

  def finish(self) -> None:
    """Removes it, when the heads that were made of it are kept."""
    (self._folder / _HEADER).unlink()
    shutil.rmtree(self._folder)

  def once(
    self,
    name: str,
    source: NoiseSource,
    make: Callable[[], Shaped[np.ndarray, "..."]],
  ) -> Shaped[np.ndarray, "..."]:
    """The next release: what is kept of it, or made now and then kept.

    Raises:
      InputError: what is kept was changed.
      RunError: it cannot be written, and nothing was made of it.
    """
    file = f"{self._next:06}-{name.replace(' ', '-')}"
    self._next += 1
    if self._next <= len(self._kept):
      return self._read(file, source)
    value = make()
    # How much was drawn may tell how many units there are.
    drawn = 0 if source.is_private else source.drawn
    body = safetensors.numpy.save(
      {"value": np.ascontiguousarray(value)}, {"drawn": str(drawn)}
    )
    self._digest = _chained(self._digest, body)
    room = self._folder / _ROOM
    with disk_errors(room):
      os.truncate(room, max(0, room.stat().st_size - len(body)))
    if not LocalStore(self._folder).put(file, self._digest + body, create=True):
      raise _changed(self._folder / file)
    return value

  def _read(self, file: str, source: NoiseSource) -> Shaped[np.ndarray, "..."]:
    path = self._folder / file
    if path != self._kept[self._next - 1]:
      raise _changed(self._kept[self._next - 1])
    content = path.read_bytes()
    digest, body = content[:_DIGEST], content[_DIGEST:]
    self._digest = _chained(self._digest, body)
    if digest != self._digest:
      raise _changed(path)
    size = int.from_bytes(body[:8], "little")
    drawn = json.loads(body[8 : 8 + size])["__metadata__"]["drawn"]
    source.skip_to(int(drawn))
    return safetensors.numpy.load(body)["value"]


class _RecordedNoise(NoiseSource):
  def __init__(self, seed: int | None, record: Record):
    super().__init__(seed)
    self._record = record

  def once(
    self, name: str, make: Callable[[], Shaped[np.ndarray, "..."]]
  ) -> Shaped[np.ndarray, "..."]:
    return self._record.once(name, self, make)


def _changed(path: Path) -> InputError:
  return InputError(
    f"{path} is not what was released there: it, or one before it, was changed"
    " or is missing. Restore the folder, or remove it and pay anew."
  )


def kept_steps(folder: Path) -> str:
  """How far a training is, such as "7 of 19 steps"; "" if there is none."""
  if not (folder / _HEADER).exists():
    return ""
  header = _header(folder)
  steps = {f"-{step}".replace(" ", "-") for step in header["step"]}
  done = sum(path.name.endswith(tuple(steps)) for path in _releases(folder))
  return f"{done} of {header['num_steps']} steps"


class _Training(TypedDict):
  training: OBJECT
  mechanisms: list[OBJECT]
  public_statistics: NotRequired[OBJECT]


class _Header(TypedDict):
  version: str
  noise_seed: int | None
  step: list[str | None]
  num_steps: int
  num_bytes: int
  trainings: list[_Training | None]
  name: str


def _header(folder: Path) -> Any:
  mend = "restore it, or remove the folder and pay anew"
  return read_json(folder / _HEADER, _Header, mend)


def _charges(ledger: Ledger, name: str) -> list[str]:
  entries = ledger.entries()
  return [each["entry"] for each in entries if each.get("record") == name]


def _releases(folder: Path) -> list[Path]:
  return sorted(
    path
    for path in folder.glob("[0-9]" * 6 + "-*")
    if path.suffix != TEMPORARY_SUFFIX
  )


def _chained(before: bytes, body: bytes) -> bytes:
  return hashlib.sha256(before + body).digest()


def _as_read(value: Mapping[str, Any]) -> dict[str, Any]:
  return json.loads(json_bytes(value))


def _in_short(header: Mapping[str, Any]) -> list[Any]:
  """What a person asked for, without what follows from it."""
  return [each and each["training"] for each in header["trainings"]]


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
