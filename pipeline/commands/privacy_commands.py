"""What the commands that score and attack do and answer."""

import dataclasses
import sys
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.heads.registry import head_kind
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.pipeline.audit.head_attack import STEPS_ROWS
from oneshot_dp.pipeline.audit.heads import audit_head, default_runs
from oneshot_dp.pipeline.audit.one_step import audit_release
from oneshot_dp.pipeline.audit.report import AuditReport
from oneshot_dp.pipeline.commands.privacy_arguments import Audit, Evaluate
from oneshot_dp.pipeline.ledger.interrupted import says_what_was_charged
from oneshot_dp.pipeline.runs.evaluation import (
  PrivateEvaluation,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.real_labels import RealLabels
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.training.train_heads import make_plan


def evaluate(command: Evaluate) -> Answer:
  """The accuracies of a head; for people they are JSON too."""
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
    with says_what_was_charged(request.ledger, out=None):
      scored = request.evaluate([saved.head])
  else:
    scored = evaluate_on_public_labels([saved.head], cache)
  (score,) = scored.scores
  if not saved.receipt.get("private"):
    print(f"warning: this head is {NOT_PRIVATE}.", file=sys.stderr)
  if not request:
    print(
      "The labels of this cache are treated as public: the accuracy is exact.",
      file=sys.stderr,
    )
  facts = dataclasses.asdict(score) | {"evaluation": scored.statement} | by_real
  answer = Answer(text="", facts=facts)
  return dataclasses.replace(answer, text=answer.json())


def _private_evaluation(
  command: Evaluate, cache: FeatureCache
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


def audit(command: Audit) -> Answer:
  """Attacks releases of synthetic rows, and says what it could prove."""
  one_step = command.head == "lamb"
  report = _audit_one_step(command) if one_step else _audit_head(command)
  if report.is_violated:
    failure = RunError(report.verdict)
    return Answer(text=str(report), facts=report.facts, failure=failure)
  text = f"{report}\nverdict: {report.verdict}"
  return Answer(text=text, facts=report.facts)


def _audit_one_step(command: Audit) -> AuditReport:
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


def _audit_head(command: Audit) -> AuditReport:
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
    sampling=head_kind(config.head).sampling(config, STEPS_ROWS),
  )
  source = NoiseSource(command.privacy.noise_seed)
  return audit_head(config, plan, source, confidence=command.confidence)
