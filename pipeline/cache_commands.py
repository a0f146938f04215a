"""What the commands about caches do and print."""

import sys
from pathlib import Path

from tqdm import tqdm

from configs.errors import InputError
from configs.schema import ExtractConfig
from extract.cache_reader import FeatureCache
from extract.cache_summary import describe
from extract.cache_verify import verify_cache
from pipeline.cache_arguments import ImportFeatures, Verify
from pipeline.duplicate_report import report_duplicates
from pipeline.head_directory import RECEIPT_FILE
from pipeline.head_verify import verify_head
from pipeline.import_features import import_features


def extract(
  config: ExtractConfig, out: Path, beam_options: list[str]
) -> FeatureCache:
  """Runs the extraction job and says what it took."""
  # Beam takes a second to import, and only this command needs it.
  from extract.job import run_extraction

  report = run_extraction(config, out, beam_options)
  cache = report.cache
  print(describe(cache))
  if not report.counters:
    print(f"{out}: complete already, nothing was extracted")
    return cache
  done = report.counters["examples"]
  print(
    f"{out}: {done:,} images in {report.seconds:.1f} s"
    f" ({done / report.seconds:.1f} images/s,"
    f" {report.counters['image_bytes'] / 1e6:.1f} MB read),"
    f" {report.counters['decode_errors']} undecodable,"
    f" {report.kept_shards} shards kept from an earlier run"
  )
  print(report.times)
  return cache


def run_import(command: ImportFeatures) -> None:
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
  print(describe(cache))
  if command.backbone_name is None:
    print(
      "warning: without --backbone-name, heads cannot be refused on features of"
      " another backbone, as long as the width is the same.",
      file=sys.stderr,
    )


def verify(command: Verify) -> None:
  """Checks a cache or a head, or looks for duplicates."""
  path = command.path
  if command.duplicates:
    report_duplicates(
      path,
      against=command.against,
      min_cosine=command.min_cosine,
      out=command.out,
    )
    return
  if not (command.against is command.min_cosine is command.out is None):
    raise InputError(
      "--against, --min-cosine and --out are for --duplicates; add it."
    )
  if (path / RECEIPT_FILE).is_file():
    check = verify_head(path, command.ledger_dir)
    found, sound = check.problems, check.conclusion
  else:
    with tqdm(desc="verify", unit="shard", disable=None, leave=False) as bar:

      def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

      report = verify_cache(path, progress=show)
    found, sound = report.problems, str(report).removeprefix("ok: ")
  if not found:
    print(f"ok: {sound}")
    return
  for problem in found:
    print(problem, file=sys.stderr)
  raise InputError(f"{path}: {len(found)} fault(s) found.")
