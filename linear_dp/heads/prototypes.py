"""`prototypes`: each class is the direction of the noisy sum of its rows.

The head that other libraries offer first, here for comparison: it costs one
release, and knows nothing of how features vary together.

Source: Wahdany et al., "Differentially Private Prototypes for Imbalanced
Transfer Learning" (AAAI 2025), DPPL-Mean, without its clipping of logits.
"""

import numpy as np

from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.heads.contract import HeadResult, HeadSpec, HeadState
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows, rows_of
from oneshot_dp.linear_dp.statistics import class_sums


def prototypes(
  sums: PrivateSums,
  rows: Rows,
  *,
  new_mu_squared: float,
  spent_mu_squared: float,
  state: HeadState | None,
  options: HeadOptions,
) -> HeadResult:
  """Makes a prototype of each class: its noisy sum, at norm 1.

  An embedding at norm 1 belongs to the class whose prototype it has the largest
  cosine with. How many rows a class has is not needed, and is not released.

  Formal guarantees: the class sums are released by one Gaussian mechanism with
  μ² = `new_mu_squared`, and averaged with those released for a smaller ε; all
  else is post-processing.

  Args:
    sums: the Gaussian mechanism.
    rows: from `rows_at_norm_one`.
    new_mu_squared: the budget, as μ².
    spent_mu_squared: not used: `sums` knows how precise its estimates are.
    state: not used, for the same reason.
    options: not used; a prototype has no options.

  Returns:
    The head; it keeps no state.
  """
  del spent_mu_squared, state, options
  sums_by_class, _ = sums.release(
    "class sums", rows, class_sums, mu_squared=new_mu_squared
  )
  # How long a sum is tells how many rows its class has. Only its direction is
  # needed, so classes of few rows are not drowned by large ones.
  norm = np.linalg.norm(sums_by_class, axis=1, keepdims=True)
  directions = sums_by_class / np.where(norm > 0, norm, 1)
  return HeadResult(
    LinearHead(
      kernel=directions.T.astype(np.float32),
      bias=np.zeros(len(directions), np.float32),
      unit_norm=True,
    )
  )


def rows_at_norm_one(data: PrivateDataset) -> Rows:
  """Returns the rows at norm 1; they serve class sums alone."""
  return rows_of(data, weight_norm_order=2)


SPEC = HeadSpec(make=prototypes, prepare_rows=rows_at_norm_one)
