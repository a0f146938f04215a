"""Training the logistic probe, the ceiling that private heads are under."""

from tqdm import tqdm

from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.heads.logistic.logistic import fit_logistic
from oneshot_dp.pipeline.mechanisms import Logistic
from oneshot_dp.pipeline.mechanisms.mechanism import UNCLIPPED
from oneshot_dp.pipeline.training.trainer import TrainedHead, TrainingRows


class LogisticTrainer:
  """See `BaselineTrainer`: all that it makes is NOT PRIVATE.

  Args:
    rows: the private rows.
  """

  def __init__(self, rows: TrainingRows):
    self._rows = rows
    self.facts = {"rows_per_unit": 1, "clipped": UNCLIPPED}

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `BaselineTrainer`."""
    info = self._rows.info
    mechanism = Logistic(
      num_examples=len(self._rows),
      feature_dim=info.feature_dim,
      num_classes=info.num_classes,
    )
    with tqdm(
      desc="logistic probe", unit="pass", disable=None, leave=False
    ) as bar:
      head = fit_logistic(
        self._rows.blocks,
        feature_dim=info.feature_dim,
        num_classes=info.num_classes,
        num_examples=len(self._rows),
        on_step=bar.update,
      )
    return TrainedHead(
      head=head,
      statement=PrivacyStatement.without_privacy(
        plan.delta, plan.neighboring_relation
      ),
      mechanism=mechanism,
      plan=plan,
      settings=mechanism.training(),
      draw=0,
    )
