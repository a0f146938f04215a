"""Training least-squares heads: one pass, and no more."""

from collections.abc import Iterator

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.least_squares.least_squares import (
  LeastSquaresRelease,
  least_squares_without_privacy,
  release_least_squares,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.pipeline.mechanisms import LeastSquares
from oneshot_dp.pipeline.training.independent_training import (
  check_rows_are_units,
)
from oneshot_dp.pipeline.training.row_bar import counted
from oneshot_dp.pipeline.training.trainer import (
  Charging,
  TrainedHead,
  TrainingRows,
)


class LeastSquaresTrainer:
  """See `Trainer`.

  Args:
    rows: the private rows, each a privacy unit.

  Raises:
    InputError: the cache has coarser units.
  """

  def __init__(self, rows: TrainingRows):
    info, self._config = rows.info, HeadConfig(head="least-squares")
    check_rows_are_units(rows, self._config)
    self._rows = SecretRows(
      lambda: counted(rows, "rows"),
      feature_dim=info.feature_dim,
      num_classes=info.num_classes,
      num_examples=len(rows),
      resident_bytes=0,
    )
    self.facts = {"rows_per_unit": 1, "clipped": "row"}

  def read(self) -> None:
    """See `Trainer`."""
    self._moments = class_moments(self._rows)

  def release(
    self, plan: ReleasePlan, source: NoiseSource, charge: Charging
  ) -> Iterator[TrainedHead]:
    """See `Trainer`."""
    count = plan.num_draws * len(plan.noise_multipliers)
    with step_bar("releases", "release", count) as bar:
      for released in release_least_squares(
        self._moments, plan, source, charge=charge
      ):
        yield self._trained(released, plan)
        bar.update()

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `Trainer`."""
    exact = least_squares_without_privacy(self._moments, plan)
    return self._trained(exact, plan)

  def _trained(
    self, released: LeastSquaresRelease, plan: ReleasePlan
  ) -> TrainedHead:
    return TrainedHead(
      head=released.head,
      statement=released.statement,
      mechanism=LeastSquares(rule=released.rule),
      plan=plan,
      settings=self._config.settings(),
      draw=released.draw,
    )
