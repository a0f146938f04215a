"""`verify --duplicates`: what is printed, and the CSV file of pairs.

What was found is private: the machines' answer, which ends up in logs, has none
of it, and the file has mode 0600.
"""

import contextlib
import csv
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from scipy.cluster.hierarchy import DisjointSet
from tqdm import tqdm

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import EMBEDDING_DTYPES
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.duplicates.exact import Progress, find_duplicates
from oneshot_dp.extract.duplicates.near import cost
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.storage.durable_files import (
  check_on_disk,
  disk_errors,
  publish,
  temporary_file,
)
from oneshot_dp.pipeline.shell.answer import Answer

_SHOWN_GROUPS = 5
_SHOWN_IDS = 8

Row = tuple[int, int]
"""Which of the two caches, and the example_id there."""


def report_duplicates(
  path: Path,
  *,
  against: Path | None,
  min_cosine: float | None,
  out: Path | None,
) -> Answer:
  """PRIVATE words about the duplicates of a cache, and public facts.

  For the arguments see `oneshot-dp verify --help`. InputError: caches that
  cannot be compared, or something at `out`. RunError: it cannot be written.
  """
  cache = open_cache(path)
  other = None if against is None else open_cache(against)
  if out is not None:
    check_on_disk(out)
    if out.exists():
      raise InputError(f"{out} is there already; name another file with --out.")
  groups, equal, close = DisjointSet(), 0, 0
  partner = "other_example_id" if other is None else "against_example_id"
  columns = ("example_id", partner, "cosine", "equal_bits")
  with _pair_file(out, columns) as write, _progress_bar() as show:
    pairs = find_duplicates(
      cache, against=other, min_cosine=min_cosine, progress=show
    )
    if min_cosine is not None:
      flop, size = cost(
        len(cache),
        None if other is None else len(other),
        cache.info.feature_dim,
        EMBEDDING_DTYPES[cache.info.embedding_dtype].itemsize,
      )
      tqdm.write(
        f"comparing embeddings: up to {flop:.1e} flop, {size / 1e9:.2g} GB of"
        " memory",
        file=sys.stderr,
      )
    for pair in pairs:
      equal += pair.equal_bits
      close += not pair.equal_bits
      row = 0, pair.example_id
      twin = int(other is not None), pair.other_id
      groups.add(row)
      groups.add(twin)
      groups.merge(row, twin)
      write(dataclasses.astuple(pair))
  besides = "" if other is None else f", against {len(other):,} of {other.path}"
  lines = [
    f"{path}: {len(cache):,} rows{besides}",
    f"equal bits: {equal:,} pairs (each copy with the first)",
  ]
  if min_cosine is not None:
    lines.append(f"cosine of {min_cosine:g} or more: {close:,} pairs besides")
  lines += _lines_of_groups(sorted(map(sorted, groups.subsets())), other)
  if out is not None:
    lines.append(f"all pairs are in {out}, which is as private as the cache")
  return Answer(
    text="\n".join(lines),
    facts={
      "cache": path,
      "rows": len(cache),
      "against": against,
      "rows_against": None if other is None else len(other),
      "min_cosine": min_cosine,
      "pairs": out,
    },
  )


def _lines_of_groups(
  groups: list[list[Row]], other: FeatureCache | None
) -> list[str]:
  if not groups:
    return ["no duplicates found"]
  # The ids of each in the one cache, and in the other.
  sided = [[[i for s, i in g if s == side] for side in (0, 1)] for g in groups]
  rows = [sum(len(ids[side]) for ids in sided) for side in (0, 1)]
  return [
    f"in all: {len(groups):,} groups of {rows[0]:,} rows"
    + (f", and {rows[1]:,} rows of {other.path}" if other else "")
    + f"; the largest has {max(map(len, groups)):,}",
    "PRIVATE, example_ids of the first groups:",
    *(
      "  " + " = ".join(_first(ids) for ids in sides if ids)
      for sides in sided[:_SHOWN_GROUPS]
    ),
  ]


def _first(ids: list[int]) -> str:
  more = f" and {len(ids) - _SHOWN_IDS:,} more" if len(ids) > _SHOWN_IDS else ""
  return ", ".join(map(str, ids[:_SHOWN_IDS])) + more


@contextlib.contextmanager
def _progress_bar() -> Iterator[Progress]:
  doing = None
  with step_bar("duplicates", "row") as bar:

    def show(what: str, done: int, total: int) -> None:
      nonlocal doing
      if what != doing:
        doing = what
        bar.reset(total)
        bar.set_description(what)
      bar.update(done - bar.n)

    yield show


@contextlib.contextmanager
def _pair_file(
  out: Path | None, columns: tuple[str, ...]
) -> Iterator[Callable[[tuple[object, ...]], object]]:
  """Writes rows of a CSV that is there at the end, or not at all."""
  if out is None:
    yield lambda row: None
    return
  with temporary_file(out.parent, out.name) as temporary:
    with (
      disk_errors(out),
      temporary.open("w", newline="", encoding="utf-8") as file,
    ):
      writer = csv.writer(file, lineterminator="\n")
      writer.writerow(columns)
      yield writer.writerow
    publish(temporary, out)
