"""What each command does and prints."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from dp_accounting import NeighboringRelation
from tqdm import tqdm

from configs.errors import InputError
from configs.schema import ExtractConfig
from extract.cache_reader import FeatureCache, open_cache
from extract.cache_summary import describe
from extract.cache_verify import verify_cache
from linear_dp.accounting import printable
from linear_dp.release import NOT_PRIVATE
from pipeline import arguments, output_dir
from pipeline.feature_space import FeatureSpace
from pipeline.head_directory import (
  RECEIPT_FILE,
  read_head,
  verify_head,
  write_head,
)
from pipeline.import_features import import_features
from pipeline.results import accuracy_table
from pipeline.sweep import evaluate_cache, run_sweep
from pipeline.training import cache_ledger, make_plan, train_heads


def run(command: Any, beam_options: list[str]) -> None:
  """Runs a parsed command.

  Raises:
    InputError, RunError: see `cli`.
  """
  match command:
    case arguments.Extract():
      extract(command.job, command.out, beam_options)
    case arguments.ImportFeatures():
      _import_features(command)
    case arguments.Inspect():
      print(describe(open_cache(command.cache)))
    case arguments.Verify():
      _verify(command.path)
    case arguments.Train():
      _train(command)
    case arguments.Sweep():
      _sweep(command)
    case arguments.Evaluate():
      _evaluate(command)
    case arguments.Budget():
      _budget(command)
    case arguments.Demo():
      from pipeline.demo import run_demo

      run_demo(command.out)


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
  return cache


def _import_features(command: arguments.ImportFeatures) -> None:
  cache = import_features(
    command.file,
    command.out,
    split=command.split,
    dataset_name=command.dataset_name,
    num_classes=command.num_classes,
    backbone_name=command.backbone_name,
    embedding_dtype=command.embedding_dtype,
  )
  print(describe(cache))
  if command.backbone_name is None:
    print(
      "warning: without --backbone-name, heads cannot be refused on features of"
      " another backbone, as long as the width is the same.",
      file=sys.stderr,
    )


def _verify(path: Path) -> None:
  if (path / RECEIPT_FILE).is_file():
    found = verify_head(path)
    sound = "the receipt follows from the noise, and fits the weights"
    if not read_head(path).receipt.get("private"):
      sound += f"; this head is {NOT_PRIVATE}"
  else:
    with tqdm(desc="verify", unit="shard", disable=None, leave=False) as bar:

      def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

      report = verify_cache(path, progress=show)
    found, sound = list(report.problems), str(report).removeprefix("ok: ")
  if not found:
    print(f"ok: {sound}")
    return
  for problem in found:
    print(problem, file=sys.stderr)
  raise InputError(f"{path}: {len(found)} fault(s) found.")


def _train(command: arguments.Train) -> None:
  output_dir.check_absent(command.out)
  cache = open_cache(command.cache)
  plan = make_plan((command.epsilon,), command.privacy)
  (trained,) = train_heads(
    cache,
    plan,
    command.training,
    command.privacy,
    ledger_dir=command.ledger_dir,
  )
  with output_dir.whole_directory(command.out) as directory:
    receipt = write_head(
      directory,
      trained.head,
      trained.release,
      plan,
      command.training,
      cache.info,
      ledger_entry=trained.ledger_entry,
    )
  privacy = receipt["privacy"]
  print(
    f"{command.out}: epsilon = {printable(privacy['epsilon'])} at delta ="
    f" {privacy['delta']:g} ({privacy['neighboring_relation']}), noise"
    f" multiplier {privacy['noise_multiplier']:.4f}, noise from"
    f" {privacy['noise_source']}"
  )


def _sweep(command: arguments.Sweep) -> None:
  start = time.monotonic()
  rows = run_sweep(
    open_cache(command.cache),
    open_cache(command.eval_cache),
    command.out,
    command.epsilons,
    command.privacy,
    command.training,
    num_seeds=command.num_seeds,
    order=command.release,
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
  )
  print(accuracy_table(rows))
  print(
    f"{command.out}: {len(rows)} heads in {time.monotonic() - start:.1f} s;"
    " see results.csv and accuracy.png"
  )


def _evaluate(command: arguments.Evaluate) -> None:
  saved, cache = read_head(command.head), open_cache(command.cache)
  FeatureSpace.of_receipt(command.head, saved.receipt).check_evaluates_on(
    FeatureSpace.of_cache(command.cache, cache.info)
  )
  (score,) = evaluate_cache([saved.head], cache)
  if not saved.receipt.get("private"):
    print(f"warning: this head is {NOT_PRIVATE}.", file=sys.stderr)
  print(json.dumps(dataclasses.asdict(score)))
  print(
    "The labels of this cache are treated as public: the accuracy is exact.",
    file=sys.stderr,
  )


def _budget(command: arguments.Budget) -> None:
  if command.delta is not None and not 0 < command.delta < 1:
    raise InputError(f"delta={command.delta} must lie between 0 and 1.")
  cache = open_cache(command.cache)
  ledger = cache_ledger(cache, command.ledger_dir)
  entries = ledger.entries()
  print(f"ledger: {ledger.path}")
  if not entries:
    print("nothing has been released")
    return
  for entry in entries:
    print(f"{entry['time']}  split {entry['split']}: {_charge(entry)}")
  delta = command.delta or min(
    (entry["delta"] for entry in entries if "delta" in entry), default=1e-6
  )
  for relation in (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
  ):
    spent = ledger.spending(relation)
    print(
      f"spent in all: epsilon = {printable(spent.epsilon(delta))} at delta ="
      f" {delta:g}, {relation.name}"
    )
  if spent.not_private:
    print(
      f"besides, {spent.not_private} of {spent.charges} entries let out results"
      f" that are {NOT_PRIVATE}: no epsilon covers them"
    )


def _charge(entry: dict[str, Any]) -> str:
  """An entry of a ledger in words."""
  if "epsilons" not in entry:
    return f"a head without noise ({entry['noise_source']})"
  epsilons = ", ".join(f"{epsilon:g}" for epsilon in entry["epsilons"])
  return (
    f"{entry['order']}, {entry['num_draws']} draw(s) of epsilon {epsilons} at"
    f" delta {entry['delta']:g}: together"
    f" {printable(entry['composed_epsilon'])} ({entry['neighboring_relation']},"
    f" {entry['noise_source']})"
  )
