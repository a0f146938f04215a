"""What each command does and prints."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configs.errors import InputError, RunError
from configs.schema import ExtractConfig, HeadConfig, PrivacyConfig
from extract.cache_reader import FeatureCache, open_cache
from extract.cache_summary import describe
from extract.cache_verify import verify_cache
from linear_dp.accounting import printable
from linear_dp.clipping import ClippedGradientGrid
from linear_dp.noise_source import NoiseSource
from linear_dp.release import NOT_PRIVATE
from pipeline import arguments, output_dir
from pipeline.ablate import run_ablation
from pipeline.ablation_arguments import Ablate
from pipeline.ablation_cells import Choices
from pipeline.ablation_table import ablation_table
from pipeline.audit import audit_release
from pipeline.audit_report import AuditReport
from pipeline.budget import Cap
from pipeline.budget_report import set_cap, show_budget
from pipeline.compare import run_compare
from pipeline.duplicate_report import report_duplicates
from pipeline.evaluation import PrivateEvaluation, evaluate_on_public_labels
from pipeline.feature_space import FeatureSpace
from pipeline.figure_arguments import Figures
from pipeline.figures import run_figures
from pipeline.head_attack import STEPS_ROWS
from pipeline.head_audit import audit_head, default_runs
from pipeline.head_choice import choose_head, release_order
from pipeline.head_directory import RECEIPT_FILE, read_head, write_head
from pipeline.head_verify import verify_head
from pipeline.import_features import import_features
from pipeline.multi_step_training import planned_sampling
from pipeline.public_rows import PublicRows, find_public_rows
from pipeline.real_labels import RealLabels
from pipeline.receipt import how_bounded
from pipeline.results import (
  SweepRow,
  accuracy_table,
  comparison_table,
  figures_table,
)
from pipeline.sweep import run_sweep
from pipeline.training import RELATIONS, make_plan, train_heads


def run(command: Any, beam_options: list[str]) -> None:
  """Runs a parsed command.

  Raises:
    InputError, RunError: see `cli`.
  """
  match command:
    case arguments.Extract():
      extract(command.job, command.out, beam_options)
    case arguments.Backbones():
      from pipeline.backbone_list import describe_backbone, list_backbones

      name = command.name
      print(list_backbones() if name is None else describe_backbone(name))
    case arguments.ImportFeatures():
      _import_features(command)
    case arguments.Inspect():
      print(describe(open_cache(command.cache)))
    case arguments.Verify():
      _verify(command)
    case arguments.Train():
      _train(command)
    case arguments.Sweep():
      _sweep(command)
    case arguments.Compare():
      _compare(command)
    case Figures():
      _figures(command)
    case Ablate():
      _ablate(command)
    case arguments.Evaluate():
      _evaluate(command)
    case arguments.Budget():
      show_budget(
        command.cache, delta=command.delta, ledger_dir=command.ledger_dir
      )
    case arguments.BudgetSet():
      cap = Cap(
        max_epsilon=command.max_epsilon,
        max_delta=command.max_delta,
        neighboring_relation=RELATIONS[command.neighboring_relation],
      )
      set_cap(command.cache, cap, ledger_dir=command.ledger_dir)
    case arguments.Audit():
      _audit(command)
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
  print(report.times)
  return cache


def _import_features(command: arguments.ImportFeatures) -> None:
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


def _verify(command: arguments.Verify) -> None:
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


def _train(command: arguments.Train) -> None:
  output_dir.check_absent(command.out)
  cache = open_cache(command.cache)
  config = choose_head(command.training, cache.info)
  plan = make_plan(
    (command.epsilon,),
    command.privacy,
    order=release_order(config, None),
    sampling=planned_sampling(config, len(cache)),
  )
  public = _public_rows(command.public, cache)
  (trained,) = train_heads(
    cache,
    plan,
    config,
    command.privacy,
    max_rows_per_unit=command.max_rows_per_unit,
    public=public,
    ledger_dir=command.ledger_dir,
  )
  with output_dir.whole_directory(command.out) as directory:
    receipt = write_head(directory, trained, cache.info)
  privacy = receipt["privacy"]
  print(
    f"{command.out}: epsilon = {printable(privacy['epsilon'])} at delta ="
    f" {printable(privacy['delta'])} ({privacy['neighboring_relation']}), noise"
    f" multiplier {privacy['noise_multiplier']:.4f}, noise from"
    f" {privacy['noise_source']}"
  )
  if cache.info.has_units:
    mechanism = receipt["mechanism"]
    bound = how_bounded(mechanism["clipped"], mechanism["rows_per_unit"])
    print(f"privacy unit: {cache.info.privacy_unit}; of its rows, {bound}")


def _sweep(command: arguments.Sweep) -> None:
  start = time.monotonic()
  cache = open_cache(command.cache)
  config = choose_head(command.training, cache.info)
  rows = run_sweep(
    cache,
    open_cache(command.eval_cache),
    command.out,
    command.epsilons,
    command.privacy,
    config,
    max_rows_per_unit=command.max_rows_per_unit,
    public=_public_rows(command.public, cache),
    num_seeds=command.num_seeds,
    order=release_order(config, command.release),
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
    private_eval=command.private_eval,
  )
  print(accuracy_table(rows))
  _say_where(command.out, rows, start)


def _compare(command: arguments.Compare) -> None:
  start = time.monotonic()
  cache = open_cache(command.cache)
  rows = run_compare(
    cache,
    open_cache(command.eval_cache),
    command.out,
    command.epsilons,
    command.privacy,
    methods=command.heads,
    public=_public_rows(command.public, cache),
    num_seeds=command.num_seeds,
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
  )
  print(comparison_table(rows))
  _say_where(command.out, rows, start)


def _public_rows(
  options: arguments.PublicOptions, cache: FeatureCache
) -> PublicRows | None:
  return find_public_rows(
    options.public_cache, cache, options.public_statistics
  )


def _say_where(
  out: Path,
  rows: list[SweepRow],
  start: float,
  picture: str = "accuracy.png",
) -> None:
  heads = len({row.path for row in rows})
  print(
    f"{out}: {heads} heads in {time.monotonic() - start:.1f} s; see"
    f" results.csv and {picture}"
  )


def _ablate(command: Ablate) -> None:
  start = time.monotonic()
  first = open_cache(command.cache), open_cache(command.eval_cache)
  if len(command.other_caches) != len(command.other_eval_caches):
    raise InputError(
      f"{len(command.other_caches)} --other-caches and"
      f" {len(command.other_eval_caches)} --other-eval-caches: give pairs."
    )
  others = [
    (open_cache(train), open_cache(evaluation))
    for train, evaluation in zip(
      command.other_caches, command.other_eval_caches, strict=True
    )
  ]
  rows = run_ablation(
    [first, *others],
    command.out,
    command.epsilon,
    command.privacy,
    Choices(
      axes=command.axes,
      init_scales=command.init_scales,
      epochs=command.epochs,
      batch_sizes=command.batch_sizes or (max(1, len(first[0]) // 10),),
      clip_norms=command.clip_norms,
      learning_rate=command.learning_rate,
    ),
    num_seeds=command.num_seeds,
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
  )
  print(ablation_table(rows))
  print(
    f"{command.out}: {len(rows)} heads in {time.monotonic() - start:.1f} s; see"
    " results.csv and ablation.png"
  )


def _figures(command: Figures) -> None:
  start = time.monotonic()
  rows = run_figures(
    open_cache(command.cache),
    open_cache(command.eval_cache),
    command.out,
    command.epsilons,
    [
      PrivacyConfig(
        delta=delta,
        neighboring_relation=command.neighboring_relation,
        noise_seed=command.noise_seed,
      )
      for delta in command.deltas
    ],
    num_seeds=command.num_seeds,
    real_labels=command.real_labels,
    references=command.references,
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
  )
  print(figures_table(rows))
  _say_where(command.out, rows, start, "accuracy-vs-epsilon.png")


def _evaluate(command: arguments.Evaluate) -> None:
  saved, cache = read_head(command.head), open_cache(command.cache)
  FeatureSpace.of_receipt(command.head, saved.receipt).check_evaluates_on(
    FeatureSpace.of_cache(command.cache, cache.info)
  )
  request = _private_evaluation(command, cache)
  by_real = {}
  if command.real_labels is not None:
    if request:
      raise InputError(
        "--real-labels are public, and --private-eval is for labels that are"
        " not; leave one of them out."
      )
    real = RealLabels.of(command.real_labels, cache)
    evaluation = real.evaluate([saved.head], cache)
    by_real = {
      "real": dataclasses.asdict(evaluation.scores[0])
      | {"evaluation": evaluation.statement}
    }
  if request:
    request.ledger.check(request.charge)
    scored = request.evaluate([saved.head])
  else:
    scored = evaluate_on_public_labels([saved.head], cache)
  (score,) = scored.scores
  if not saved.receipt.get("private"):
    print(f"warning: this head is {NOT_PRIVATE}.", file=sys.stderr)
  print(
    json.dumps(
      dataclasses.asdict(score) | {"evaluation": scored.statement} | by_real
    )
  )
  if not request:
    print(
      "The labels of this cache are treated as public: the accuracy is exact.",
      file=sys.stderr,
    )


def _private_evaluation(
  command: arguments.Evaluate, cache: FeatureCache
) -> PrivateEvaluation | None:
  if command.private_eval is None:
    if command.delta is not None or command.noise_seed is not None:
      raise InputError(
        "--delta and --noise-seed are for --private-eval; without it the"
        " accuracy is exact: leave them out, or give --private-eval EPSILON."
      )
    return None
  if command.delta is None:
    raise InputError(
      f"--private-eval {command.private_eval:g} needs a --delta, well below"
      f" 1/n = {1 / len(cache):.2g}."
    )
  privacy = PrivacyConfig(
    delta=command.delta,
    neighboring_relation=command.neighboring_relation,
    noise_seed=command.noise_seed,
  )
  return PrivateEvaluation.of(
    command.private_eval, privacy, cache, command.ledger_dir
  )


def _audit(command: arguments.Audit) -> None:
  one_step = command.head == "lamb"
  report = _audit_one_step(command) if one_step else _audit_head(command)
  print(report)
  if report.is_violated:
    raise RunError(report.verdict)
  print(f"verdict: {report.verdict}")


def _audit_one_step(command: arguments.Audit) -> AuditReport:
  HeadConfig(head=command.head, steps=command.steps)  # what it refuses

  def given(value: Any, default: Any) -> Any:
    return default if value is None else value

  grid = ClippedGradientGrid(
    num_classes=given(command.num_classes, 4),
    feature_dim=given(command.feature_dim, 8),
    l2_clip_norm=given(command.l2_clip_norm, 1.0),
    train_bias=command.train_bias,
  )
  seed = command.privacy.noise_seed
  runs = given(command.runs, 10_000)
  return audit_release(
    grid,
    make_plan((command.epsilon,), command.privacy, num_draws=runs),
    NoiseSource(seed),
    canaries=given(command.canaries, 10_000),
    confidence=command.confidence,
    seed=seed,
  )


def _audit_head(command: arguments.Audit) -> AuditReport:
  config = HeadConfig(head=command.head, steps=command.steps)
  for option in (
    "canaries",
    "num_classes",
    "feature_dim",
    "l2_clip_norm",
    "train_bias",
  ):
    if getattr(command, option) not in (None, False):
      flag = option.replace("_", "-")
      raise InputError(
        f"--{flag} is for the audit of --head lamb; leave it out with --head"
        f" {command.head}."
      )
  plan = make_plan(
    (command.epsilon,),
    command.privacy,
    order="independent",
    num_draws=default_runs(config) if command.runs is None else command.runs,
    sampling=planned_sampling(config, STEPS_ROWS),
  )
  source = NoiseSource(command.privacy.noise_seed)
  return audit_head(config, plan, source, confidence=command.confidence)
