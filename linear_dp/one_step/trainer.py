"""Training heads of one step: one exact sum, one step per release.

Several optimizers may take their step from the same release: they are
post-processing of it, and cost no more than one of them.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast, get_args

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, OptimizerName
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import (
  Release,
  baseline_without_privacy,
  release,
)
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.units import choose_rows
from oneshot_dp.linear_dp.rows.whole_units import count_rows
from oneshot_dp.linear_dp.trainer import (
  Charging,
  HeadTrainer,
  Mechanism,
  NoBar,
  OnRelease,
  Progress,
  Released,
  Resumable,
  TrainedHead,
  TrainingRows,
  disk_of,
  unseen,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneStep(Mechanism):
  """The paper's mechanism, told by its clipping, `grid`."""

  KIND = "one-step"
  grid: ClippedGradientGrid

  @classmethod
  def from_json(cls, section: Mapping[str, Any]) -> Self:
    fields = [field.name for field in dataclasses.fields(ClippedGradientGrid)]
    return cls(
      grid=ClippedGradientGrid(**{name: section[name] for name in fields})
    )

  def as_json(self) -> dict[str, Any]:
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanism on the integer sum of clipped first-step"
      " gradients, rounded to the grid",
      "statistic": "G = rint(p0*T) - S, released as G + round(N(0, sd^2))",
      "sensitivity": "(m*B*|r| + (1 + 2^-10)*sqrt(K*D)) grid steps, where m is"
      " rows_per_unit (1 where units are clipped), doubled for REPLACE_ONE",
      **dataclasses.asdict(self.grid),
      "residual_norm": self.grid.residual_norm,
      "grid_radius": GRID_RADIUS,
      "grid_step": self.grid.step,
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """In grid steps."""
    return self.grid.sensitivity(relation)

  def training(self) -> dict[str, Any]:
    names = ("l2_clip_norm", "initial_bias", "train_bias")
    return {name: getattr(self.grid, name) for name in names}

  def in_words(self, training: Mapping[str, Any]) -> str:
    grid = self.grid
    return (
      f"one full-batch step of {training['head']} from zero weights and bias"
      f" {grid.initial_bias:g}, gradients clipped to norm {grid.l2_clip_norm:g}"
    )


class OneStepTrainer(HeadTrainer):
  """Reads the rows once; twice where they have units, first for their ids.

  Its configs are optimizers, all with one clipping.
  """

  methods = get_args(OptimizerName)
  mechanism = OneStep
  can_nest = True

  def __init__(
    self,
    rows: TrainingRows,
    configs: Sequence[HeadConfig],
    progress: Progress = NoBar,
  ):
    super().__init__(rows, configs, progress)
    grids = {make_grid(rows, each) for each in configs}
    if len(grids) != 1:
      raise InputError("heads of one release need one clipping.")
    (self._grid,) = grids
    self._optimizers = [make_optimizer(config) for config in configs]
    bounds = ("rows_per_unit", "clipped")
    self.facts = {name: getattr(self._grid, name) for name in bounds}

  def read(self) -> None:
    chosen = sizes = None
    rows = self._given
    if rows.has_units:
      blocks = rows.shown("ids", self._progress)
      if self._grid.clipped == "unit":
        sizes = count_rows(blocks, rows.hosts)
      else:
        chosen = choose_rows(blocks, self._grid.rows_per_unit, rows.hosts)
    summed = exact_clipped_sum(
      rows.shown("clipped sum", self._progress),
      self._grid,
      num_examples=rows.counted,
      chosen=chosen,
      sizes=sizes,
      hosts=rows.hosts,
    )
    self._secret = dataclasses.replace(summed, num_examples=rows.num_examples)

  def resumes_by(self, plan: ReleasePlan) -> Resumable:
    grid, count = self._grid, plan.num_draws * len(plan.epsilons)
    return Resumable(
      num_bytes=disk_of(count, grid.num_classes * grid.row_dim),
      settings={
        "training": [config.settings() for config in self._configs],
        "mechanisms": [OneStep(grid=grid).as_json()],
      },
    )

  def release(
    self,
    plan: ReleasePlan,
    source: NoiseSource,
    charge: Charging,
    on_release: OnRelease = unseen,
  ) -> Iterator[TrainedHead]:
    count = plan.num_draws * len(plan.noise_multipliers)
    with self._progress("releases", "release", count) as bar:
      for each in release(self._secret, plan, source, charge=charge):
        on_release(
          Released(
            name="clipped sum",
            value=each.noisy_sum,
            noise_multiplier=each.statement.noise_multiplier,
            grid_step=1.0,
            at={"grid": self._grid},
          )
        )
        yield from self._trained(each, plan)
        bar.update()

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    exact = baseline_without_privacy(self._secret, plan)
    return next(self._trained(exact, plan))

  def _trained(
    self, released: Release, plan: ReleasePlan
  ) -> Iterator[TrainedHead]:
    for config, optimizer in zip(self._configs, self._optimizers, strict=True):
      yield TrainedHead(
        head=one_step(released, optimizer),
        statement=released.statement,
        mechanism=OneStep(grid=self._grid),
        plan=plan,
        settings=config.settings(),
        draw=released.draw,
      )


def make_grid(rows: TrainingRows, config: HeadConfig) -> ClippedGradientGrid:
  """The clipping that a config asks for: of units, or of rows."""
  most = rows.max_rows_per_unit
  if most is not None and not rows.has_units:
    raise InputError(
      f"max_rows_per_unit={most}, but the cache has no unit_id: every row is a"
      " unit of its own; leave it out, or make the cache with units."
    )
  return ClippedGradientGrid(
    num_classes=rows.num_classes,
    feature_dim=rows.feature_dim,
    l2_clip_norm=config.l2_clip_norm,
    initial_bias=config.initial_bias,
    train_bias=config.train_bias,
    rows_per_unit=1 if most is None else most,
    clipped="unit" if rows.has_units and most is None else "row",
  )


def make_optimizer(config: HeadConfig) -> OneStepOptimizer:
  """The optimizer that a config asks for."""
  return OneStepOptimizer(
    name=cast(OptimizerName, config.head),
    learning_rate=config.learning_rate,
    eps=config.eps,
    eps_in_noise_sds=config.eps_in_noise_sds,
  )
