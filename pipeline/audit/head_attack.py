"""An attack on heads as they are published, and what each run scores.

The rows are synthetic, and everything after them is what `train` runs: the
trainer of the head reads them and releases as many heads as there are runs. The
adversary knows all rows but one, and sees the head alone, not the noisy steps
behind it. Scores are linear in the weights: the direction is how the canary
moves a head without noise, divided by the covariance of the noise of pilot
runs, so that noise which weights share hides nothing.

Sizes are what makes the attack strongest. Heads of steps see a canary and else
only rows of zeros, which have no gradient: in a few weights, the noise of the
others tells the scale, which a head does not publish. Least squares sees many
rows, beside which it is all but linear in the canary.
"""

import dataclasses

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Float, Int64
from tqdm import tqdm

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp import audit as bounds
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.heads.registry import make_trainer
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.trainer import TrainedHead, TrainingRows
from oneshot_dp.pipeline.audit.one_step_attacks import PILOT_SHARE

_NUM_CLASSES = 2
_FEATURE_DIM = 2
STEPS_ROWS = 64
"""Rows of a head of several steps: what batch sizes are a part of."""
_ROUNDING = 2.0**-40
_REACH = 1 / 0.15
"""Norm of a canary, in clip norms: some are wasted on a clipped gradient, but
with more the canary would soon be classified rightly, without a gradient."""
_BASE = np.array(
  [[0.550, 0.835], [-0.032, -0.999], [0.987, 0.159], [-0.157, 0.988]]
)
_BASE_LABELS = (0, 1, 0, 1)
_BASE_COUNTS = (6630, 19882, 4530, 18957)
_BASE_CANARY = np.array([-0.98, -0.2])
"""Canary of least squares, found by a search for what shows it best, which
takes a head's four weights 0.99 of the way to all that is released."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
  """What runs without and with the canary score; of more it is more likely.

  Attributes:
    claim: what the heads say of themselves.
    pilot: of the runs that chose the score, without and with; a test may be
      chosen by them.
    tested: of the others.
  """

  claim: PrivacyStatement
  pilot: tuple[Float[np.ndarray, " pilots"], Float[np.ndarray, " pilots"]]
  tested: tuple[Float[np.ndarray, " tests"], Float[np.ndarray, " tests"]]


def pilot_runs(runs: int) -> int:
  """How many of the runs of each kind choose the score."""
  return runs // PILOT_SHARE


def attack_heads(
  config: HeadConfig, plan: ReleasePlan, source: NoiseSource
) -> Scores:
  """Trains heads without and with a canary, and scores them.

  Args:
    config: the head.
    plan: one ε; `num_draws` is the number of runs of each kind.
    source: the random bits.

  Returns:
    Scores, whose direction the pilot runs alone have chosen.
  """
  replaced = plan.neighboring_relation is NeighboringRelation.REPLACE_ONE
  with step_bar("runs", "run", 2 * plan.num_draws) as bar:
    # A row of zeros adds nothing to anything, and keeps the number of rows.
    other = -1.0 * replaced
    _, absent = _heads(other, config, plan, source, bar)
    claim, present = _heads(1.0, config, plan, source, bar)
  signal = _exact(1.0, config, plan) - _exact(other, config, plan)
  pilot, tested = zip(
    *(np.split(x, [pilot_runs(len(x))]) for x in (absent, present)), strict=True
  )
  noise = np.concatenate([x - x.mean(axis=0) for x in pilot])
  unit = noise.std(axis=0)
  # Where the noise is none, what is left of it is rounding.
  least = _ROUNDING * np.abs(pilot[0]).max(axis=0)
  unit = np.where(unit > least, unit, 1.0)
  direction = bounds.whitened_direction(noise / unit, signal / unit) / unit
  return Scores(
    claim=claim,
    pilot=(pilot[0] @ direction, pilot[1] @ direction),
    tested=(tested[0] @ direction, tested[1] @ direction),
  )


def _heads(
  canary: float,
  config: HeadConfig,
  plan: ReleasePlan,
  source: NoiseSource,
  bar: tqdm,
) -> tuple[PrivacyStatement, Float[np.ndarray, "runs n"]]:
  """What the product claims, and its heads."""
  rows = _rows(config, canary)
  trainer = make_trainer(rows, [config])
  trainer.read()
  published, statements = [], []
  # No private data, so nothing is charged.
  for made in trainer.release(plan, source, lambda *_: None):
    published.append(_features(config, made))
    statements.append(made.statement)
    bar.update()
  return statements[0], np.array(published)


def _exact(
  canary: float, config: HeadConfig, plan: ReleasePlan
) -> Float[np.ndarray, " n"]:
  """The head without noise; every step sees the canary, whatever the batches.

  Of a Poisson sample, chance might leave it out, and show no signal at all.
  """
  full = dataclasses.replace(config.steps, sampling=None, batch_size=None)
  config = dataclasses.replace(config, steps=full)
  trainer = make_trainer(_rows(config, canary), [config])
  trainer.read()
  return _features(config, trainer.baseline(plan))


def _rows(config: HeadConfig, canary: float) -> TrainingRows:
  """The rows, the first of them so many times the canary."""
  if config.head == "least-squares":
    base = np.repeat(_BASE, _BASE_COUNTS, axis=0)
    embedding = np.concatenate([canary * _BASE_CANARY[None], base])
    label = np.repeat([0, *_BASE_LABELS], [1, *_BASE_COUNTS])
    return _in_memory(embedding, label)
  steps = config.steps
  clip_norm = 1.0 if steps.l2_clip_norm is None else steps.l2_clip_norm
  embedding = np.zeros((STEPS_ROWS, _FEATURE_DIM))
  # Of rows of norm 1 only the direction counts.
  embedding[0, 0] = canary * clip_norm * _REACH
  return _in_memory(embedding, np.zeros(STEPS_ROWS, np.int64))


def _in_memory(
  embedding: Float[np.ndarray, "rows d"], label: Int64[np.ndarray, " rows"]
) -> TrainingRows:
  rows = ArrayRows.of(embedding, label, num_classes=_NUM_CLASSES)
  return TrainingRows(
    blocks=lambda: [rows],
    feature_dim=rows.feature_dim,
    num_classes=_NUM_CLASSES,
    num_examples=rows.num_examples,
  )


def _features(
  config: HeadConfig, trained: TrainedHead
) -> Float[np.ndarray, " n"]:
  """The weights; at length 1 where their scale says nothing."""
  weights = np.asarray(trained.head.kernel, np.float64).ravel()
  if config.head == "least-squares" or not config.steps.unit_norm:
    return weights
  length = float(np.linalg.norm(weights))
  return weights / length if length > 0 else weights
