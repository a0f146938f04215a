"""`oneshot-dp extract`."""

import dataclasses
import inspect
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import (
  AvoidSubcommands,
  FlagCreatePairsOff,
  Positional,
  Suppress,
  arg,
)

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  ArraysSource,
  ExtractConfig,
  ImageFolderSource,
  TableSource,
  TfdsSource,
)
from oneshot_dp.configs.registry import experiment_names, load_config
from oneshot_dp.pipeline.commands.checks import check_beam_options
from oneshot_dp.pipeline.shell.answer import Answer

IF_INTERRUPTED = (
  "interrupted; an extraction resumes when the same command is run again"
)
RUNS = "runs "
_SOURCES = (
  ArraysSource(path="images.npz"),
  ImageFolderSource(root="photos"),
  TableSource(path="data"),
  TfdsSource(name="cifar10"),
)
"""One of each kind."""
# No prefix: `--split`, `--backbone.weights`.
_Job = AvoidSubcommands[
  FlagCreatePairsOff[Annotated[ExtractConfig, arg(name="")]]
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Run a backbone over a data set and write the embeddings to a cache.

  CONFIG is one of the experiments in configs/experiments/ or a path to a
  Python file with a get_config(). Every field of it can be changed by a flag
  (`oneshot-dp extract folder_vit_b16 --help` has those of a folder);
  flags that are not listed here go to Beam (--runner, --direct_num_workers,
  --project …). Run the same command again to resume a job that was stopped.

  With --views 16 a row is the mean embedding of 16 random crops of its image.

  Example: oneshot-dp extract cifar10_vit_ti16 --backbone.weights vit_ti16.npz
  --split train --out caches/cifar10-train
  """

  config: Annotated[Positional[str], arg(metavar="CONFIG")]
  """Experiment name or Python file."""
  out: Path
  """Directory of the cache."""
  job: _Job
  beam_options: Suppress[tuple[str, ...]] = ()

  def __post_init__(self):
    takes_value = False
    for word in self.beam_options:
      if not word.startswith("-") and not takes_value:
        raise InputError(
          f"{word!r} is one word too many: extract takes one CONFIG, then"
          " flags."
        )
      takes_value = word.startswith("-") and "=" not in word


class _ConfigIsLate(Flags):
  def __post_init__(self):
    raise InputError(
      f"CONFIG comes first: oneshot-dp extract {self.config} --out ..."
    )


def first_words() -> Sequence[str]:
  """What may follow the command, to be completed."""
  return experiment_names()


def named_flags(words: Sequence[str]) -> type[Flags]:
  """The flags by default as the experiment has them, which comes first."""
  if not words or words[0].startswith("-"):
    return _by_default(ExtractConfig(source=_SOURCES[0]), _ConfigIsLate)
  # It says what may be typed, so that it runs before that is read.
  if Path(words[0]).suffix == ".py" and "--quiet" not in words:
    print(f"{RUNS}{words[0]}, which is Python code", file=sys.stderr)
  return _by_default(load_config(words[0]))


def all_flags() -> list[type[Flags]]:
  """The flags of each kind of source."""
  return [_by_default(ExtractConfig(source=source)) for source in _SOURCES]


def _by_default(job: ExtractConfig, kind: type[Flags] = Flags) -> type[Flags]:
  made = dataclasses.make_dataclass(
    "Flags", [("job", _Job, job)], bases=(kind,), frozen=True, kw_only=True
  )
  text = inspect.cleandoc(Flags.__doc__ or "")
  made.__doc__ = f"{text}\n\nExperiments: {', '.join(experiment_names())}."
  return made


def run(flags: Flags) -> Answer:
  """Runs the job, and says what it took; see `run_extraction`."""
  start = time.monotonic()  # people wait for imports, too
  from oneshot_dp.extract.cache.summary import describe, owners_metadata
  from oneshot_dp.extract.job.job import run_extraction
  from oneshot_dp.extract.progress import counted

  check_beam_options(flags.beam_options, all_flags())
  report = run_extraction(flags.job, flags.out, flags.beam_options)
  cache = report.cache
  facts = {"cache": cache.path, "metadata": owners_metadata(cache)}
  if not report.counters:
    return Answer(
      text=f"{describe(cache)}\n{cache.path}: complete already, nothing was"
      " extracted",
      facts=facts | {"images": 0, "kept_shards": report.kept_shards},
    )
  done, waited = report.counters["examples"], time.monotonic() - start
  took = (
    f"{cache.path}: {done:,} images in {waited:.1f} s, {report.seconds:.1f} of"
    f" them the job ({done / report.seconds:.1f} images/s,"
    f" {report.counters['image_bytes'] / 1e6:.1f} MB read),"
    f" {report.counters['decode_errors']} undecodable"
    f"{' (skipped.json names them)' * bool(report.counters['decode_errors'])},"
    f" {counted(report.kept_shards, 'shard')} kept from an earlier run"
  )
  return Answer(
    text="\n".join([describe(cache), took, str(report.times)]),
    facts=facts
    | {
      "images": done,
      "kept_shards": report.kept_shards,
      "undecodable": report.counters["decode_errors"],
      "image_bytes": report.counters["image_bytes"],
      "seconds": waited,
      "seconds_of_job": report.seconds,
      "seconds_held_up_by": report.times,
    },
  )
