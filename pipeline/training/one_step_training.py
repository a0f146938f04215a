"""Training heads of one step: one exact sum, one step per release.

Several optimizers may take their step from the same release: they are
post-processing of it, and cost no more than one of them.
"""

from collections.abc import Iterator, Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum, exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import (
  Release,
  baseline_without_privacy,
  release,
)
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step
from oneshot_dp.linear_dp.one_step.unit_sums import count_rows
from oneshot_dp.linear_dp.rows.units import choose_rows
from oneshot_dp.pipeline.mechanisms import OneStep
from oneshot_dp.pipeline.training.row_bar import counted, row_bar
from oneshot_dp.pipeline.training.trainer import (
  Charging,
  TrainedHead,
  TrainingRows,
)


class OneStepTrainer:
  """See `Trainer`.

  Reads the cache once (twice where it has units: first for the ids, to count or
  choose the rows of each).

  Args:
    rows: the private rows.
    configs: optimizers, all with one clipping; each makes a head of every
      release.
    max_rows_per_unit: m, only where the cache has units: sum at most m rows of
      each instead of clipping their sum.

  Raises:
    InputError: what was asked makes no sense for this cache.
  """

  def __init__(
    self,
    rows: TrainingRows,
    configs: Sequence[HeadConfig],
    max_rows_per_unit: int | None,
  ):
    self._rows = rows
    self._configs = configs
    grids = {make_grid(rows.info, c, max_rows_per_unit) for c in configs}
    if len(grids) != 1:
      raise InputError("heads of one release need one clipping.")
    (self._grid,) = grids
    self._optimizers = [OneStepOptimizer.of(config) for config in configs]
    self.facts = {
      "rows_per_unit": self._grid.rows_per_unit,
      "clipped": self._grid.clipped,
    }

  def read(self) -> None:
    """See `Trainer`."""
    self._secret = _sum_rows(self._rows, self._grid)

  def release(
    self, plan: ReleasePlan, source: NoiseSource, charge: Charging
  ) -> Iterator[TrainedHead]:
    """See `Trainer`."""
    count = plan.num_draws * len(plan.noise_multipliers)
    with step_bar("releases", "release", count) as bar:
      for each in release(self._secret, plan, source, charge=charge):
        yield from self._trained(each, plan)
        bar.update()

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `Trainer`."""
    first, *_ = self._trained(
      baseline_without_privacy(self._secret, plan), plan
    )
    return first

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


def make_grid(
  info: CacheInfo, config: HeadConfig, max_rows_per_unit: int | None = None
) -> ClippedGradientGrid:
  """The clipping that a config asks for on a cache.

  Args:
    info: of the cache.
    config: the clipping.
    max_rows_per_unit: clip rows, and sum at most so many of a unit; None clips
      units where the cache has them, and otherwise rows.

  Raises:
    InputError: the rows of a unit are bounded where each row is a unit; or a
      number that makes no sense.
  """
  if max_rows_per_unit is not None and not info.has_units:
    raise InputError(
      f"max_rows_per_unit={max_rows_per_unit}, but the cache has no unit_id:"
      " every row is a unit of its own; leave it out, or make the cache with"
      " units."
    )
  return ClippedGradientGrid.of(
    config,
    num_classes=info.num_classes,
    feature_dim=info.feature_dim,
    has_units=info.has_units,
    max_rows_per_unit=max_rows_per_unit,
  )


def _sum_rows(rows: TrainingRows, grid: ClippedGradientGrid) -> SecretSum:
  chosen = sizes = None
  if rows.info.has_units:
    blocks = counted(rows, "ids")
    if grid.clipped == "unit":
      sizes = count_rows(blocks)
    else:
      chosen = choose_rows(blocks, grid.rows_per_unit)
  with row_bar(rows, "clipped sum") as bar:
    return exact_clipped_sum(
      rows.blocks(),
      grid,
      num_examples=len(rows),
      chosen=chosen,
      sizes=sizes,
      on_rows=bar.update,
    )
