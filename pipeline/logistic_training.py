"""Training the logistic probe, the ceiling that private heads are under."""

import math

from tqdm import tqdm

from extract.cache_reader import FeatureCache
from linear_dp.logistic import fit_logistic
from linear_dp.release import BASELINE_NOISE, PrivacyStatement, ReleasePlan
from pipeline.mechanism import UNCLIPPED, Logistic
from pipeline.trainer import TrainedHead


class LogisticTrainer:
  """See `BaselineTrainer`: all that it makes is NOT PRIVATE.

  Args:
    cache: the private rows.
  """

  def __init__(self, cache: FeatureCache):
    self._cache = cache
    self.facts = {"rows_per_unit": 1, "clipped": UNCLIPPED}

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `BaselineTrainer`."""
    info = self._cache.info
    mechanism = Logistic(
      num_examples=len(self._cache),
      feature_dim=info.feature_dim,
      num_classes=info.num_classes,
    )
    with tqdm(
      desc="logistic probe", unit="pass", disable=None, leave=False
    ) as bar:
      head = fit_logistic(
        self._cache.blocks,
        feature_dim=info.feature_dim,
        num_classes=info.num_classes,
        num_examples=len(self._cache),
        on_step=bar.update,
      )
    return TrainedHead(
      head=head,
      statement=PrivacyStatement(
        epsilon=math.inf,
        delta=plan.delta,
        noise_multiplier=0.0,
        sensitivity=1.0,
        noise_sd=0.0,
        neighboring_relation=plan.neighboring_relation,
        noise_source=BASELINE_NOISE,
        is_private=False,
      ),
      mechanism=mechanism,
      plan=plan,
      settings=mechanism.training(),
      draw=0,
    )
