"""What a path is, and what is wrong with it: for its holder, private or not."""

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import INFO_FILE

_SQLITE = b"SQLite format 3\0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
  """What was found.

  Attributes:
    kind: "images", "cache", "head", "run" or "ledger".
    text: for people; of images and caches, PRIVATE.
    facts: all of it, for machines.
    faults: a line each, of what is broken.
  """

  kind: str
  text: str
  facts: Mapping[str, Any]
  faults: tuple[str, ...] = ()


def inspect_path(paths: Sequence[str]) -> Inspection:
  """Looks at a cache, a head, a run, a ledger's file, or else at images.

  Raises:
    InputError: it is none of them, or cannot be read.
  """
  kind = _kind(paths[0]) if len(paths) == 1 else "images"
  if kind == "images":
    return _images(paths)
  path = paths[0]
  looks = {"cache": _cache, "head": _head, "run": _run, "ledger": _ledger}
  try:
    return looks[kind](path)
  except InputError as error:  # it is one, and broken
    facts, faults = {"path": path}, (str(error),)
    return Inspection(
      kind=kind, text=_table({f"a {kind}": path}), facts=facts, faults=faults
    )


def _kind(path: str) -> str:
  if is_cache(path):
    return "cache"
  if storage.is_url(path):
    return "images"
  for file, kind in ("receipt.json", "head"), ("results.json", "run"):
    if os.path.lexists(os.path.join(path, file)):
      return kind
  if _is_ledger(Path(path)):
    return "ledger"
  if not os.path.lexists(path):
    raise InputError(f"{path} is not there: name a folder or a file.")
  return "images"


def is_cache(path: str) -> bool:
  """Whether a finished cache is there."""
  if not storage.is_url(path):
    return os.path.isfile(os.path.join(path, INFO_FILE))
  return storage.read(storage.store_at(path), INFO_FILE, 1 << 30) is not None


def _is_ledger(path: Path) -> bool:
  if not path.is_file():
    return False
  with open(path, "rb") as file:
    return file.read(len(_SQLITE)) == _SQLITE


def _images(paths: Sequence[str]) -> Inspection:
  from oneshot_dp.extract.sources.describe import describe_images

  found = describe_images(paths)
  return Inspection(
    kind="images",
    text=found.text,
    facts=dataclasses.asdict(found),
    faults=found.faults,
  )


def _cache(path: str) -> Inspection:
  from oneshot_dp.extract.cache.check import check_cache, describe
  from oneshot_dp.extract.cache.read import open_cache

  cache = open_cache(path)
  faults = check_cache(path)
  rows = describe(cache)
  return Inspection(
    kind="cache",
    text=_table({"a cache": f"{path}, PRIVATE", **rows}),
    facts={"path": path, "metadata": cache.info.public(), **rows},
    faults=tuple(faults),
  )


def _head(path: str) -> Inspection:
  from oneshot_dp.linear_dp.accounting import printable
  from oneshot_dp.pipeline.head_folder import read_head
  from oneshot_dp.pipeline.results import NOT_PRIVATE

  saved = read_head(path)
  stated, names = saved.stated, ", ".join(saved.stated["class_names"])
  promise = f"{NOT_PRIVATE} (noise: {stated['noise_source']})"
  if saved.private:
    promise = (
      f"epsilon {printable(saved.receipt['follows']['epsilon'])} at delta"
      f" {printable(stated['delta'])} per {stated['privacy_unit']}"
    )
  rows = {
    "a head": path,
    "guarantee": promise,
    "trained by": stated["head"],
    "private data": _private_data(stated),
    "classes": f"{stated['num_classes']}: {names}"[:200],
    "embedding": f"{stated['feature_dim']} values of"
    f" {stated['backbone']['name']}",
    "charge": f"{stated['charge']}: oneshot-dp verify asks the ledger",
  }
  return Inspection(
    kind="head",
    text=_table(rows),
    facts={"path": path, "receipt": saved.receipt},
  )


def _private_data(stated: Mapping[str, Any]) -> str:
  rows = f"{stated['dataset']}, split {stated['split']}{stated['rows']}"
  return f"{rows}, {stated['num_examples']:,} examples"


def _run(path: str) -> Inspection:
  from oneshot_dp.pipeline import results
  from oneshot_dp.pipeline.report.page import read_run

  run = read_run(Path(path))
  first = next(iter(run.receipts.values()))["stated"]
  rows = {
    "a run": path,
    "private data": _private_data(first),
    "heads": f"{len(run.rows)}, each with a sound receipt",
  }
  return Inspection(
    kind="run",
    text=f"{_table(rows)}\n{results.table(run.rows)}",
    facts={"path": path, **run.facts, "heads": run.rows},
  )


def _ledger(path: str) -> Inspection:
  import msgspec

  from oneshot_dp.pipeline.ledger import Ledger

  entries = [
    msgspec.to_builtins(entry) for entry in Ledger(Path(path)).entries()
  ]
  for entry in entries:
    entry.pop("asked", None)  # it tells of the rows
  counts = collections.Counter(entry["dataset"] for entry in entries)
  lines = {"a ledger": f"{path}, {len(entries)} charges and caps"}
  lines |= {name: f"{count} of them" for name, count in counts.items()}
  lines["to know more"] = "oneshot-dp budget"
  return Inspection(
    kind="ledger",
    text=_table(lines),
    facts={"path": path, "entries": entries},
  )


def _table(rows: Mapping[str, Any]) -> str:
  width = max(map(len, rows)) + 2
  return "\n".join(f"{name:<{width}}{value}" for name, value in rows.items())
