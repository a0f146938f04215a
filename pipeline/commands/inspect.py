"""`oneshot-dp inspect`."""

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f

_SQLITE = b"SQLite format 3\0"
_Seen = tuple[dict[str, Any], dict[str, Any], Sequence[str]]
"""Rows of a table, facts, and faults."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Say what a path is, and what is wrong with it; exit 1 if something is.

  Images (folders, npz, Parquet, tar): classes, sizes, owners, duplicates, all
  that are broken, and files that are none. A cache: its rows and every byte. A
  head, a run, a ledger. What it says of images, caches and ledgers is PRIVATE.
  Nothing is changed.

  oneshot-dp inspect photos
  """

  path: Annotated[
    Positional[tuple[str, ...]], f.flag("On a disk, gs:// or s3://.", "PATH")
  ]
  class_names: Annotated[tuple[str, ...], f.flag("As extract's.", "NAME")] = ()
  num_classes: Annotated[int | None, f.flag("As extract's.", "K")] = None
  units: Annotated[str | None, f.flag("Owners, as extract's.", "BY")] = None


def run(flags: Flags) -> Answer:
  """Looks at a cache, a head, a run, a ledger's file, or else at images."""
  if not (paths := flags.path):
    raise InputError("name a path: oneshot-dp inspect PATH.")
  kind = _kind(paths[0]) if len(paths) == 1 else "images"
  said = {name: v for name, v in vars(flags).items() if name != "path"}
  if kind == "images":
    from oneshot_dp.extract.sources.describe import describe_images

    found = describe_images(paths, **said)
    facts = {"kind": "images", **dataclasses.asdict(found)}
    return _with_status(found.text, facts)
  if any(said.values()):
    raise InputError(f"{paths[0]} is a {kind}: these flags are for images.")
  path = paths[0]
  looks = {"cache": _cache, "head": _head, "run": _run, "ledger": _ledger}
  try:
    rows, facts, faults = looks[kind](path)
  except InputError as error:  # it is one, and broken
    rows, facts, faults = {}, {}, [str(error)]
  mark = ", PRIVATE" if kind in ("cache", "ledger") else ""
  rows = {f"a {kind}": path + mark, **rows}
  width = max(map(len, rows)) + 2
  lines = (f"{name:{width}}{value}" for name, value in rows.items())
  said = {"kind": kind, "path": path, **facts, "faults": faults}
  return _with_status("\n".join(lines), said)


def _with_status(text: str, facts: Mapping[str, Any]) -> Answer:
  faults = tuple(facts["faults"])
  said = f"{len(faults)} thing{'s are' if faults[1:] else ' is'} broken."
  failure = RunError(said) if faults else None
  return Answer(text=text, facts=facts, faults=faults, failure=failure)


def _kind(path: str) -> str:
  from oneshot_dp.extract import storage

  if is_cache(path):
    return "cache"
  if storage.is_url(path):
    return "images"
  for file, kind in ("receipt.json", "head"), ("results.json", "run"):
    if os.path.lexists(os.path.join(path, file)):
      return kind
  if os.path.isfile(path):
    with open(path, "rb") as file:
      if file.read(len(_SQLITE)) == _SQLITE:
        return "ledger"
  if not os.path.lexists(path):
    raise InputError(f"{path} is not there: name a folder or a file.")
  return "images"


def is_cache(path: str) -> bool:
  """Whether a finished cache is there."""
  from oneshot_dp.extract import storage
  from oneshot_dp.extract.cache.format import INFO_FILE

  if not storage.is_url(path):
    return os.path.isfile(os.path.join(path, INFO_FILE))
  return storage.read(storage.store_at(path), INFO_FILE, 1 << 30) is not None


def _cache(path: str) -> _Seen:
  from oneshot_dp.extract.cache.read import check_cache, describe, open_cache

  cache = open_cache(path)
  rows, public = describe(cache), cache.info.public()
  return rows, {"metadata": public, **rows}, check_cache(path)


def _head(path: str) -> _Seen:
  from oneshot_dp.linear_dp.accounting import format_rounded_up
  from oneshot_dp.pipeline.heads.head_folder import read_head
  from oneshot_dp.pipeline.report.results import NOT_PRIVATE

  saved = read_head(path)
  stated, names = saved.stated, ", ".join(saved.stated["class_names"])
  promise = f"{NOT_PRIVATE}: {stated['noise_source'].partition(':')[0]}"
  if saved.trained.private:
    promise = (
      f"epsilon {format_rounded_up(saved.receipt['follows']['epsilon'])}"
      " at delta"
      f" {format_rounded_up(stated['delta'])} per {stated['privacy_unit']}"
    )
  rows = {
    "guarantee": promise,
    "trained by": stated["head"],
    "private data": _private_data(stated),
    "classes": f"{stated['num_classes']}: {names}"[:200],
    "embedding": f"{stated['feature_dim']} values of"
    f" {stated['backbone']['name']}",
    "charge": f"{stated['charge']}: oneshot-dp verify asks the ledger",
  }
  return rows, {"receipt": saved.receipt}, ()


def _private_data(stated: Mapping[str, Any]) -> str:
  rows = f"{stated['dataset']}, split {stated['split']}{stated['rows']}"
  return f"{rows}, {stated['num_examples']:,} examples"


def _run(path: str) -> _Seen:
  from oneshot_dp.pipeline.report import results
  from oneshot_dp.pipeline.report.saved_run import read_run

  run = read_run(Path(path))
  first = next(iter(run.receipts.values()))["stated"]
  rows = {
    "private data": _private_data(first),
    "heads": f"{len(run.rows)}, each with a sound receipt",
  }
  if run.facts is not None:
    table = results.table(
      run.rows, run.facts.evaluation.evaluation_set, first["num_classes"]
    )
    rows["accuracy"] = f"of each kind and epsilon\n{table}"
  return rows, {**run.content, "heads": run.rows}, ()


def _ledger(path: str) -> _Seen:
  import msgspec

  from oneshot_dp.pipeline.ledger.ledger import Ledger

  ledger = Ledger(Path(path))
  entries = [msgspec.to_builtins(entry) for entry in ledger.entries()]
  for entry in entries:
    entry.pop("asked", None)  # it tells of the rows
  counts = collections.Counter(entry["dataset"] for entry in entries)
  rows = {name: f"charges and caps: {n}" for name, n in counts.items()}
  return rows, {"entries": entries}, ()
