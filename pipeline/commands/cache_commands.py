"""What the commands about caches do and answer."""

import dataclasses
import sys
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.cache.summary import describe, public_metadata
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.pipeline.commands.cache_arguments import (
  Extract,
  ImportFeatures,
  Verify,
)
from oneshot_dp.pipeline.commands.duplicate_report import report_duplicates
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.saved_head.directory import RECEIPT_FILE
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.shell.complaints import did_you_mean
from oneshot_dp.pipeline.shell.parser import flags_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extraction(Answer):
  """What an extraction took, and the cache that it made."""

  cache: FeatureCache


def extract(
  config: ExtractConfig, out: Path, beam_options: tuple[str, ...] = ()
) -> Extraction:
  """Runs the extraction job and says what it took.

  Raises:
    InputError, RunError, KeyboardInterrupt: see `run_extraction`.
  """
  # Beam takes a second to import, and only this command needs it.
  from oneshot_dp.extract.job.job import run_extraction

  report = run_extraction(config, out, beam_options)
  cache = report.cache
  facts = {"cache": out, "metadata": public_metadata(cache)}
  if not report.counters:
    return Extraction(
      text=f"{describe(cache)}\n{out}: complete already, nothing was extracted",
      facts=facts | {"images": 0, "kept_shards": report.kept_shards},
      cache=cache,
    )
  done = report.counters["examples"]
  took = (
    f"{out}: {done:,} images in {report.seconds:.1f} s"
    f" ({done / report.seconds:.1f} images/s,"
    f" {report.counters['image_bytes'] / 1e6:.1f} MB read),"
    f" {report.counters['decode_errors']} undecodable,"
    f" {report.kept_shards} shards kept from an earlier run"
  )
  return Extraction(
    text="\n".join([describe(cache), took, str(report.times)]),
    facts=facts
    | {
      "images": done,
      "kept_shards": report.kept_shards,
      "undecodable": report.counters["decode_errors"],
      "image_bytes": report.counters["image_bytes"],
      "seconds": report.seconds,
      "seconds_held_up_by": report.times,
    },
    cache=cache,
  )


def run_extract(command: Extract, beam_options: tuple[str, ...]) -> Answer:
  """Runs the extraction job; of a mistyped flag says which was meant.

  Raises:
    InputError, RunError, KeyboardInterrupt: see `run_extraction`.
  """
  from oneshot_dp.extract.job.beam_options import UnknownFlagError

  try:
    return extract(command.job, command.out, beam_options)
  except UnknownFlagError as error:
    hint = did_you_mean(error.flag.replace("_", "-"), flags_of("extract"))
    raise InputError(f"{error} {hint}") from error


def inspect(path: Path) -> Answer:
  """Says what is in a cache."""
  return _description(open_cache(path))


def run_import(command: ImportFeatures) -> Answer:
  """Imports features, and says what came of it."""
  cache = import_features(
    command.file,
    command.out,
    split=command.split,
    dataset_name=command.dataset_name,
    num_classes=command.num_classes,
    backbone_name=command.backbone_name,
    unit_name=command.unit_name,
    embedding_dtype=command.embedding_dtype,
  )
  if command.backbone_name is None:
    print(
      "warning: without --backbone-name, heads cannot be refused on features of"
      " another backbone, as long as the width is the same.",
      file=sys.stderr,
    )
  return _description(cache)


def _description(cache: FeatureCache) -> Answer:
  return Answer(
    text=describe(cache),
    facts={"cache": cache.path, "metadata": public_metadata(cache)},
  )


def verify(command: Verify) -> Answer:
  """Checks a cache or a head, or looks for duplicates."""
  path = command.path
  if command.duplicates:
    return report_duplicates(
      path,
      against=command.against,
      min_cosine=command.min_cosine,
      out=command.out,
    )
  if not (command.against is command.min_cosine is command.out is None):
    raise InputError(
      "--against, --min-cosine and --out are for --duplicates; add it."
    )
  if (path / RECEIPT_FILE).is_file():
    check = verify_head(path, command.ledger_dir)
    return _verdict(path, "head", check.problems, check.conclusion)
  with step_bar("verify", "shard") as bar:

    def show(done: int, total: int) -> None:
      if bar.total is None:
        bar.reset(total)
      bar.update(done - bar.n)

    report = verify_cache(path, progress=show)
  sound = str(report).removeprefix("ok: ")
  return _verdict(path, "cache", report.problems, sound)


def _verdict(
  path: Path, kind: str, problems: tuple[str, ...], sound: str
) -> Answer:
  facts = {"path": path, "kind": kind, "ok": not problems, "faults": problems}
  if not problems:
    return Answer(text=f"ok: {sound}", facts=facts | {"conclusion": sound})
  return Answer(
    text="",
    facts=facts,
    faults=problems,
    failure=InputError(f"{path}: {len(problems)} fault(s) found."),
  )
