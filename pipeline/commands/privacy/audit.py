"""`oneshot-dp audit`."""

import dataclasses
from typing import Any, Literal

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  StepsConfig,
)
from oneshot_dp.pipeline.shell.answer import Answer

_OF_ONE_STEP: dict[str, Any] = {
  "canaries": 10_000,
  "num_classes": 4,
  "feature_dim": 8,
  "l2_clip_norm": 1.0,
  "train_bias": False,
}
"""What can be set with --head lamb only, and what it is then by default."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Attack releases of synthetic rows to bound epsilon from below.

  Runs the clipped sums, the noise and the release that train runs, on rows that
  are made up: no private data is read and nothing is charged. Exit status 1 if
  the bound is above epsilon. A bound below it is consistent with the claim and
  does not prove it.

  Example: oneshot-dp audit --epsilon 1 --delta 1e-5

  Example: oneshot-dp audit --head multi-step --steps.sampling poisson
  --steps.batch-size 16 --epsilon 4 --delta 1e-5
  """

  epsilon: float
  """The claim to test."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  head: Literal["lamb", "whitened", "least-squares", "multi-step"] = "lamb"
  """What to attack: "lamb", the release that all heads of one step are made of;
  or heads of another kind as they are published, of 2 classes, 2 features."""
  steps: StepsConfig = dataclasses.field(default_factory=StepsConfig)
  """Batches of multi-step heads, on 64 rows."""
  runs: int | None = None
  """Releases with the canary, and as many without it; default: 600 of heads of
  many steps, else 10000."""
  confidence: float = 0.95
  """Confidence of all bounds together."""
  canaries: int | None = None
  """Only with lamb: examples to tell apart in a single release; default:
  10000."""
  num_classes: int | None = None
  """Only with lamb: classes of the synthetic rows; default: 4."""
  feature_dim: int | None = None
  """Only with lamb: numbers in an embedding of theirs; default: 8."""
  l2_clip_norm: float | None = None
  """Only with lamb: largest norm of a per-example gradient; default: 1."""
  train_bias: FlagCreatePairsOff[bool] = False
  """Only with lamb: audit the gradient of the bias too."""


def run(flags: Flags) -> Answer:
  """Attacks them, and says what it could prove."""
  from oneshot_dp.linear_dp.heads.registry import head_kind
  from oneshot_dp.linear_dp.noise.source import NoiseSource
  from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
  from oneshot_dp.pipeline.audit.head_attack import STEPS_ROWS
  from oneshot_dp.pipeline.audit.heads import audit_head, default_runs
  from oneshot_dp.pipeline.audit.one_step import audit_release
  from oneshot_dp.pipeline.training.train_heads import make_plan

  config = HeadConfig(head=flags.head, steps=flags.steps)
  given = {
    name: value
    for name in _OF_ONE_STEP
    # By identity: 0 is given too, and refused further on.
    if (value := getattr(flags, name)) is not None and value is not False
  }
  seed = flags.privacy.noise_seed
  source, epsilons = NoiseSource(seed), (flags.epsilon,)
  if flags.head == "lamb":
    of_one_step = _OF_ONE_STEP | given
    canaries = of_one_step.pop("canaries")
    runs = 10_000 if flags.runs is None else flags.runs
    report = audit_release(
      ClippedGradientGrid(**of_one_step),
      make_plan(epsilons, flags.privacy, num_draws=runs),
      source,
      canaries=canaries,
      confidence=flags.confidence,
      seed=seed,
    )
  elif given:
    flag = next(iter(given)).replace("_", "-")
    raise InputError(
      f"--{flag} is for the audit of --head lamb; leave it out with --head"
      f" {flags.head}."
    )
  else:
    plan = make_plan(
      epsilons,
      flags.privacy,
      order="independent",
      num_draws=default_runs(config) if flags.runs is None else flags.runs,
      sampling=head_kind(config.head).sampling(config, STEPS_ROWS),
    )
    report = audit_head(config, plan, source, confidence=flags.confidence)
  if report.is_violated:
    failure = RunError(report.verdict)
    return Answer(text=str(report), facts=report.facts, failure=failure)
  text = f"{report}\nverdict: {report.verdict}"
  return Answer(text=text, facts=report.facts)
