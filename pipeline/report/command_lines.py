"""The commands that a page shows, to be copied."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.pipeline.report.run_record import RunRecord
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.saved_head.public_record import SETTING


class Places(NamedTuple):
  """Where things are now."""

  cache: Path
  eval_cache: Path
  ledger_dir: Path


def commands(
  run: RunRecord, row: SweepRow, places: Places
) -> list[tuple[str, str]]:
  """What each does, and the command; `row` is the head looked at."""
  here = run.directory.absolute()
  cache, eval_cache, ledger_dir = map(str, places)
  ledger = ["--ledger-dir", ledger_dir]
  page = ["report", str(here), "--epsilon", exactly(row.epsilon)]
  page += ["--head", row.head, "--cache", cache, "--eval-cache", eval_cache]
  seeded = run.config["privacy"]["noise_seed"] is not None
  noise = "the same seed" if seeded else "the noise will be other noise"
  lines = {
    "Check this head: recompute its receipt, compare the weights, look up the"
    " charge": ["verify", str(here / row.path), *ledger],
    "What the odometer reads, and what is left of a cap": [
      *("budget", "--cache", cache, *ledger)
    ],
    f"Do it again: {noise}, and it is charged again": run_again(run, places),
    "This page": [*page, *ledger],
  }
  return [(what, in_lines(words)) for what, words in lines.items()]


def run_again(run: RunRecord, places: Places) -> list[str]:
  """The `sweep` or `compare` that would do it once more, as words.

  Where public rows were used, --public-cache is a blank to be filled in.
  """
  config = run.config
  words = ["compare" if run.is_comparison else "sweep"]
  words += ["--cache", str(places.cache)]
  words += ["--eval-cache", str(places.eval_cache)]
  words += ["--epsilons", *(exactly(each) for each in config["epsilons"])]
  words += _flags(config["privacy"], PrivacyConfig)
  words += ["--num-draws", str(config["num_draws"])]
  if run.is_comparison:
    words += ["--heads", *(head["head"] for head in config["heads"])]
  else:
    settings = dict(config["head"])
    steps = settings.pop("steps", {})
    words += ["--head", settings.pop("head")]
    words += _flags(settings, HeadConfig)
    words += _flags(steps, type(HeadConfig().steps), prefix="steps.")
    words += ["--release", config["release"]]
    for name in ("max_rows_per_unit", "private_eval"):
      if config[name] is not None:
        words += [_flag(name), exactly(config[name])]
  if config["public_cache"] is not None:
    words += ["--public-cache", "PUBLIC_CACHE"]
    words += [_flag(SETTING), config[SETTING]]
  if config["baseline"]:
    words.append("--baseline")
  words += ["--ledger-dir", str(places.ledger_dir)]
  return [*words, "--out", f"{run.directory.absolute()}-again"]


def exactly(value: float | int | str) -> str:
  """With all digits: two epsilons that look alike are two heads."""
  return str(value).removesuffix(".0")


def in_lines(words: list[str]) -> str:
  """A command for a shell, an option a line."""
  lines, line = [], "oneshot-dp"
  for word in words:
    if word.startswith("--"):
      lines.append(line)
      line = shlex.quote(word)
    else:
      line += f" {shlex.quote(word)}"
  return " \\\n  ".join([*lines, line])


def _flags(values: Mapping[str, Any], of: type, prefix: str = "") -> list[str]:
  """What is not as it is by default."""
  words = []
  defaults = {field.name: field.default for field in dataclasses.fields(of)}
  for name, value in values.items():
    if value is None or value == defaults[name]:
      continue
    words.append(_flag(prefix + ("no_" if value is False else "") + name))
    if not isinstance(value, bool):
      words.append(exactly(value))
  return words


def _flag(name: str) -> str:
  return "--" + name.replace("_", "-")
