"""What a sweep or comparison left in its directory, read back."""

import contextlib
import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.typed_json import (
  OBJECT,
  parse_json,
  read_content,
)
from oneshot_dp.pipeline.runs.results import (
  SweepRow,
  grouped,
  mean_top1,
  with_noise,
)
from oneshot_dp.pipeline.saved_head.directory import SavedHead, read_head

_RENAMED = {"seed": "draw", "num_seeds": "num_draws"}
"""What runs of before call it."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunRecord:
  """A run of many heads: its config.json, results.json, and rows of heads."""

  directory: Path
  config: dict[str, Any]
  results: dict[str, Any]
  rows: tuple[SweepRow, ...]

  @property
  def dataset(self) -> str:
    return self.config["train_cache"]["dataset"]

  @property
  def class_names(self) -> tuple[str, ...]:
    return tuple(self.config["train_cache"]["class_names"])

  @property
  def is_comparison(self) -> bool:
    """Whether it compares several methods: no sweep of one."""
    return "heads" in self.config

  @property
  def labels_are_public(self) -> bool:
    """Whether the evaluation rows may be looked at one by one."""
    return self.results["evaluation"]["labels"] == "public"

  @property
  def noisy(self) -> tuple[SweepRow, ...]:
    """The heads with an epsilon; private, unless the noise has a seed."""
    return tuple(with_noise(self.rows))

  @property
  def ceiling(self) -> SweepRow | None:
    """The head without noise, if there is one: NOT PRIVATE."""
    exact = [row for row in self.rows if math.isinf(row.epsilon)]
    return max(exact, key=lambda row: row.top1, default=None)

  @property
  def delta(self) -> float:
    return self.rows[0].delta

  @functools.cached_property
  def receipts(self) -> dict[str, dict[str, Any]]:
    """Those of all heads, by path."""
    return {row.path: self.head(row).receipt for row in self.rows}

  def head(self, row: SweepRow) -> SavedHead:
    """Its weights and receipt; InputError if they are damaged or gone."""
    return read_head(self.directory / row.path)

  def chosen(
    self, epsilon: float | None = None, method: str | None = None
  ) -> tuple[SweepRow, ...]:
    """The heads of one epsilon and method, over draws; InputError if none.

    By default of the middle epsilon, and of the most accurate method there.
    """
    by_epsilon = grouped(self.noisy, "epsilon")
    epsilons = sorted(by_epsilon)
    if epsilon is None:
      epsilon = epsilons[(len(epsilons) - 1) // 2]
    methods = grouped(by_epsilon.get(epsilon, ()), "head")
    if methods and method is None:
      method = max(methods, key=lambda name: mean_top1(methods[name]))
    asked = ("epsilon", epsilon, epsilons), ("head", method, methods)
    for name, value, known in asked:
      if value not in known:
        raise InputError(
          f"{name}={value!r} is not among those of {self.directory}: give one"
          f" of {', '.join(map(str, known))}."
        )
    return tuple(methods[method])


@contextlib.contextmanager
def read_back(place: Path, *others: type[Exception]) -> Iterator[None]:
  """Says that a place is damaged, if it is not as a run writes it."""
  try:
    yield
  except InputError:
    raise
  except (LookupError, TypeError, ValueError, AttributeError, *others) as error:
    raise InputError(
      f"{place} is damaged ({error!r}); run it again."
    ) from error


def read_run(directory: Path) -> RunRecord:
  """What `sweep` or `compare` wrote; InputError for anything else."""
  files = directory / "config.json", directory / "results.json"
  if not all(file.is_file() for file in files):
    raise InputError(
      f"{directory} holds no results; give the directory that `sweep` or"
      " `compare` wrote with --out."
    )
  written = [read_content(file) for file in files]
  config, results = (
    parse_json(file, content, OBJECT, "run it again", _RENAMED)
    for file, content in zip(files, written, strict=True)
  )
  digest = hashlib.sha256(written[1]).hexdigest()
  if config.get("results_sha256", digest) != digest:
    raise InputError(
      f"{directory / 'results.json'} is not the one that the run wrote: it was"
      " edited; restore it, or run it again."
    )
  if "run" not in config:
    raise InputError(
      f"{directory} was not written by this version's `sweep` or `compare`,"
      " which reports are about; run one of them again."
    )
  with read_back(directory):
    heads = [h | {"epsilon": float(h["epsilon"])} for h in results["heads"]]
    rows = msgspec.convert(heads, tuple[SweepRow, ...])
    run = RunRecord(
      directory=directory, config=config, results=results, rows=rows
    )
    if not run.noisy:
      raise ValueError("no heads")
    _ = run.dataset, run.class_names, run.labels_are_public, run.delta
  return run
