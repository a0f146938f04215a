"""`oneshot-dp inspect`."""

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from oneshot_dp.configs.errors import InputError, RunError, check_positive
from oneshot_dp.configs.extract_config import MAX_PIXELS
from oneshot_dp.extract.places import normalize
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  BIT_DEPTH,
  PIXEL_LIMIT,
  CommandFlags,
  Flag,
)

_SQLITE = b"SQLite format 3\0"
_CLASS_NAMES_WIDTH = 200
_PRIVATE_KINDS = ("cache", "ledger")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Identify a path and report problems; exit status 1 if there are any.

  Images (folders, npz, Parquet, tar): classes, sizes, owners, duplicates,
  undecodable images, and files that would be skipped. A cache: every byte and
  row is checked. A head, a run, a ledger. What it reports about images, caches
  and ledgers is PRIVATE. Nothing is changed.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp inspect photos",
    "oneshot-dp inspect caches/train",
  )

  path: tuple[str, ...] = Flag(
    parse=normalize,
    form="PATH",
    positional=True,
    several=True,
    help="What to look at, on a disk, gs:// or s3://; or a data set of the"
    " Hugging Face Hub, hf://datasets/OWNER/NAME.",
  ).required()
  class_names: tuple[str, ...] = Flag(
    form="NAME",
    several=True,
    help="Names of all classes of the images, as for extract (default: those"
    " of the data).",
  ).default(())
  num_classes: int | None = Flag(
    parse=int,
    form="K",
    help="Number of classes of the images, as for extract.",
  ).default(None)
  units: str | None = Flag(
    form="FILE.csv|REGEX|COLUMN|same-image",
    help="Whose each image is, as for extract (default: each image alone).",
  ).default(None)
  bit_depth: int | None = BIT_DEPTH.with_default_in_words(
    "all 16, and files that may use fewer are problems"
  ).default(None)
  max_pixels: int = PIXEL_LIMIT.default(MAX_PIXELS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Findings:
  """The findings about a path.

  Attributes:
    table: lines of a table, by their titles.
    facts: the same for programs.
    faults: one line for each problem.
  """

  table: Mapping[str, Any]
  facts: Mapping[str, Any]
  faults: Sequence[str] = ()


def run(flags: Flags) -> Answer:
  """Looks at images, a cache, a head, a run or a ledger's file."""
  check_positive("--max-pixels", flags.max_pixels)
  check_positive("--num-classes", flags.num_classes)
  kind = "images"
  path = flags.path[0]
  if len(flags.path) == 1:
    kind = _kind_of(path)
  if kind == "images":
    return _inspect_images(flags)
  # Flags of images would be ignored here, and so they are refused.
  is_about_images = flags.class_names or flags.units or flags.bit_depth
  if is_about_images or flags.num_classes is not None:
    raise InputError(f"{path} is a {kind}: these flags are for images.")
  # A fault is the answer here, and not an error: the exit status says that
  # there is one, and what could be read is shown.
  looks = {
    "cache": _inspect_cache,
    "head": _inspect_head,
    "run": _inspect_run,
    "ledger": _inspect_ledger,
  }
  try:
    findings = looks[kind](path)
  except InputError as error:  # it is of this kind, and broken
    findings = _Findings(table={}, facts={}, faults=[str(error)])
  mark = ", PRIVATE" if kind in _PRIVATE_KINDS else ""
  table = {f"a {kind}": path + mark, **findings.table}
  width = max(map(len, table)) + 2
  lines = [f"{title:{width}}{value}" for title, value in table.items()]
  facts = {
    "kind": kind,
    "path": path,
    **findings.facts,
    "faults": findings.faults,
  }
  return _answer("\n".join(lines), facts, findings.faults)


def is_cache(path: str) -> bool:
  """Returns whether a finished cache is at a path."""
  from oneshot_dp.extract import storage
  from oneshot_dp.extract.cache.format import INFO_FILE

  if not storage.is_url(path):
    try:
      os.stat(os.path.join(path, INFO_FILE))
    except PermissionError as error:  # it may well be one
      raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (OSError, ValueError):
      return False
    return os.path.isfile(os.path.join(path, INFO_FILE))
  return storage.read(storage.store_at(path), INFO_FILE, 1 << 30) is not None


def _kind_of(path: str) -> str:
  from oneshot_dp.extract import hub, storage

  if is_cache(path):
    return "cache"
  # Of what is not all in its bucket yet, receipts and results.json are missing:
  # it has what is put before, and is no folder of images.
  if _has_one_of(path, ("receipt.json", "head.safetensors")):
    return "head"
  if _has_one_of(path, ("results.json", "accuracy.pdf")):
    return "run"
  if storage.is_url(path):
    return "images"
  if os.path.isfile(path):
    with open(path, "rb") as file:
      if file.read(len(_SQLITE)) == _SQLITE:
        return "ledger"
  if path.startswith("tfds:"):
    raise InputError(
      f"{path} is not inspected: TFDS checks what it prepares; extract it."
    )
  if path.startswith(hub.PROTOCOL):
    return "images"
  if not os.path.lexists(path):
    storage.store_at(path)  # refuses addresses of other kinds
    raise InputError(f"{path} does not exist: name a folder or a file.")
  return "images"


def _has_one_of(folder: str, names: Sequence[str]) -> bool:
  from oneshot_dp.extract import places, storage

  # (An address on the Hub has neither files nor objects.)
  place = Path(folder)
  if storage.is_url(folder):
    place = places.as_place(folder)
  return any(places.exists(place / name) for name in names)


def _refuse_half(path: str, last: str) -> None:
  """Refuses a head or run without the file that is written last."""
  if not _has_one_of(path, [last]):
    raise InputError(
      f"{path} has no {last}, so it is not whole: the command that was stopped,"
      " typed again, writes the rest."
    )


def _answer(
  text: str, facts: Mapping[str, Any], faults: Sequence[str]
) -> Answer:
  failure = None
  if len(faults) == 1:
    failure = RunError("1 problem was found.")
  elif faults:
    failure = RunError(f"{len(faults)} problems were found.")
  return Answer(text=text, facts=facts, faults=tuple(faults), failure=failure)


def _inspect_images(flags: Flags) -> Answer:
  from oneshot_dp.configs.extract_config import SourceConfig
  from oneshot_dp.extract.sources.describe import describe_images

  report = describe_images(
    SourceConfig(
      location=flags.path,
      class_names=flags.class_names,
      num_classes=flags.num_classes,
      units=flags.units,
    ),
    flags.bit_depth,
    flags.max_pixels,
  )
  facts = {"kind": "images", **dataclasses.asdict(report)}
  answer = _answer(report.text, facts, report.faults)
  # The report has them already, beside all else that was found.
  return dataclasses.replace(answer, faults=())


def _inspect_cache(path: str) -> _Findings:
  from oneshot_dp.extract.cache.check import check_cache
  from oneshot_dp.extract.cache.duplicates import (
    describe_duplicates,
    find_duplicates,
  )
  from oneshot_dp.extract.cache.read import ABSENT, describe, open_cache

  cache = open_cache(path)
  described = describe(cache)
  faults = check_cache(path)
  if not faults:  # rows of a damaged cache cannot all be read
    described |= describe_duplicates(find_duplicates(cache), cache.info)
  table = {}
  for caption, value in described.items():
    if value != ABSENT:
      table[caption] = value
  return _Findings(
    table=table,
    facts={"metadata": cache.info.public(), **described},
    faults=faults,
  )


def _inspect_head(path: str) -> _Findings:
  from oneshot_dp.linear_dp.accounting import format_rounded_up
  from oneshot_dp.pipeline.heads.head_folder import read_head
  from oneshot_dp.pipeline.report.results import NOT_PRIVATE

  _refuse_half(path, "receipt.json")
  saved = read_head(path)
  stated = saved.stated
  # Only what the receipt states, whose numbers were computed anew. Whether it
  # was charged is for `verify`.
  if saved.trained.private:
    epsilon = format_rounded_up(saved.receipt["follows"]["epsilon"])
    delta = format_rounded_up(stated["delta"])
    guarantee = (
      f"epsilon {epsilon} at delta {delta} per {stated['privacy_unit']}"
    )
  else:
    source, _, _ = stated["noise_source"].partition(":")
    guarantee = f"{NOT_PRIVATE}: {source}"
  classes = f"{stated['num_classes']}: {', '.join(stated['class_names'])}"
  table = {
    "guarantee": guarantee,
    "trained by": stated["head"],
    "private data": _private_data(stated),
    "classes": classes[:_CLASS_NAMES_WIDTH],
    "embedding": f"{stated['feature_dim']} values of"
    f" {stated['backbone']['name']}",
    "charge": f"{stated['charge']}: oneshot-dp verify asks the ledger",
  }
  return _Findings(table=table, facts={"receipt": saved.receipt})


def _private_data(stated: Mapping[str, Any]) -> str:
  return (
    f"{stated['dataset']}, split {stated['split']}{stated['rows']},"
    f" {stated['num_examples']:,} examples"
  )


def _inspect_run(path: str) -> _Findings:
  from oneshot_dp.pipeline.report import results
  from oneshot_dp.pipeline.report.saved_run import read_run

  _refuse_half(path, "results.json")
  run = read_run(Path(path))
  first = next(iter(run.receipts.values()))["stated"]
  table = {
    "private data": _private_data(first),
    "heads": f"{len(run.rows)}, each with a sound receipt",
  }
  if run.facts is not None:
    accuracies = results.table(
      run.rows, run.facts.evaluation.evaluation_set, first["num_classes"]
    )
    table["accuracy"] = f"of each kind and epsilon\n{accuracies}"
  return _Findings(table=table, facts={**run.content, "heads": run.rows})


def _inspect_ledger(path: str) -> _Findings:
  import msgspec

  from oneshot_dp.pipeline.ledger.ledger import Ledger

  entries = []
  counts: collections.Counter[str] = collections.Counter()
  for entry in Ledger(Path(path)).entries():
    fields = msgspec.to_builtins(entry)
    fields.pop("asked", None)  # it describes private rows
    entries.append(fields)
    counts[entry.dataset] += 1
  table = {name: f"charges and caps: {n}" for name, n in counts.items()}
  return _Findings(table=table, facts={"entries": entries})
