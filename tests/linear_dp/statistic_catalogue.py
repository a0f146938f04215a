"""Every statistic that is summed, rows to sum over, and plain oracles."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import FIXED_GRAPH
from oneshot_dp.linear_dp import statistics
from oneshot_dp.linear_dp.dataset import UNIT_WEIGHT, PrivateDataset
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import Rows, rows_of

D, K = 6, 4
SENSITIVITY = UNIT_WEIGHT * ROW_NORM
P_VALUE = 1e-4


def data_of(
  embedding,
  label,
  unit=None,
  *,
  divisor=None,
  block=1000,
  num_classes=K,
  n=None,
  hosts=None,
) -> PrivateDataset:
  """Rows as a cache gives them, in blocks; nothing is checked here.

  With a divisor, rows may have several owners, and `unit` is [rows, m].
  """
  with np.errstate(over="ignore"):
    norm = np.linalg.norm(embedding.astype(np.float64), axis=1)
    norm = norm.astype(np.float32)
  columns = {
    "embedding": embedding,
    "embedding_norm": norm,
    "label": np.asarray(label, np.int32),
    "example_id": np.arange(len(label)),
  }
  name = "example"
  if unit is not None:
    columns["unit_id"] = np.asarray(unit, np.int64)
    name = "user"
  if divisor is not None:
    columns["weight_divisor"] = np.asarray(divisor, np.uint32)
    name += FIXED_GRAPH
  return PrivateDataset(
    blocks=lambda: (
      {name: c[i : i + block] for name, c in columns.items()}
      for i in range(0, len(label), block)
    ),
    n=n or max(1, len(label)),
    feature_dim=embedding.shape[1],
    num_classes=num_classes,
    unit=name,
    **({} if hosts is None else {"hosts": hosts}),
  )


def hostile_rows(rng, n=24, dtype=np.float32):
  """Embeddings and labels: long, short, subnormal, zero, equal and opposite."""
  x = rng.standard_normal((n, D))
  x[1] *= 1e37
  x[2] *= 1e-30
  x[3] = 1e-42  # subnormal
  x[4] = 0
  x[5] = [1, 0, 0, 0, 0, 0]
  x[6] = -x[5]
  x[7] = x[5]
  x[8] = 1
  if dtype == np.float16:
    x = np.clip(x, -60000, 60000)
  return x.astype(dtype), rng.integers(0, K, n)


def columns_of(rows):
  """z, labels and weights of a pass, in int64; padding is of zeros."""
  columns = [
    np.concatenate([np.asarray(part) for part in column]).astype(int)
    for column in zip(*[chunk.arrays for chunk in rows.chunks()], strict=True)
  ]
  row, _, weight = columns
  assert not row[weight == 0].any()
  return columns


def exact_sum(rows, left):
  """What leaves without noise."""
  return PrivateSums(None, 0.0).release("it", rows, left, mu_squared=1.0)[0]


def lengths_squared(z):
  return [sum(v * v for v in row) for row in z.tolist()]


@dataclasses.dataclass(frozen=True)
class Statistic:
  left: statistics.RowStatistic
  public: tuple[Any, ...] = ()
  most: float = math.inf
  power: int = 1
  maps: bool = False
  each: bool = False

  def rows(self, data: PrivateDataset) -> Rows:
    rows = rows_of(
      data,
      max_inverse_norm=self.most,
      weight_norm_order=self.power,
      per_row=self.each,
    )
    if self.maps:
      rng = np.random.default_rng(8)
      rows = rows.mapped(rng.normal(0, 0.2, D), rng.standard_normal((D, D)))
    return rows

  def release(self, sums: PrivateSums, data: PrivateDataset, buys: float = 1.0):
    """What the mechanism releases, and its noise multiplier."""
    rows = self.rows(data)
    return sums.release(
      "it", rows, self.left, mu_squared=buys, public=self.public
    )

  def exact(self, data: PrivateDataset) -> np.ndarray:
    """The sum in integers, without noise."""
    sums = PrivateSums(None, 0.0)
    found, sigma = self.release(sums, data)
    assert sigma == 0
    assert not sums.releases
    assert not sums.estimates
    total = found * (data.weight * ROW_NORM)
    assert (total % 1 == 0).all()
    assert np.abs(total).max(initial=0) < 2**53
    return total.astype(np.int64)


def kernel(seed, scale):
  rng = np.random.default_rng(seed)
  return statistics.integer_kernel(scale * rng.standard_normal((D, K)))


HEADS = list(np.random.default_rng(3).standard_normal((3, D, K)))
BIASES = list(np.random.default_rng(4).standard_normal((3, K)) * 0.1)
PRIOR = np.log([0.7, 0.2, 0.09, 0.01])

STATISTICS = {
  "class sums": Statistic(statistics.class_sums, most=1.0, power=2),
  "class sums of weights that add up": Statistic(statistics.class_sums),
  "mean": Statistic(statistics.row_weights),
  "moment": Statistic(statistics.second_moment),
  "moment of a map": Statistic(statistics.second_moment, maps=True),
  "class counts": Statistic(statistics.class_counts, (np.arange(K),)),
  "units": Statistic(statistics.unit_count),
  "right": Statistic(
    statistics.correct_predictions, statistics.integer_heads(HEADS, BIASES)
  ),
  "right one by one": Statistic(
    statistics.correct_predictions,
    statistics.integer_heads(HEADS, BIASES),
    each=True,
  ),
  "gain": Statistic(
    statistics.prediction_gain,
    statistics.integer_heads(HEADS[:2], BIASES[:2]),
  ),
  "residual at zero": Statistic(statistics.residual, (*kernel(0, 0.0), 0.03)),
  "residual": Statistic(
    statistics.residual, (*kernel(1, 3.0), 0.03), maps=True
  ),
  "residual, certain": Statistic(
    statistics.residual, (*kernel(2, 1e6), 1.5), maps=True
  ),
  "residual with a prior": Statistic(
    statistics.residual, (*kernel(1, 3.0), 0.06, PRIOR), maps=True
  ),
  "residual, tiny clip": Statistic(
    statistics.residual, (*kernel(1, 0.1), 1e-12)
  ),
}

every = pytest.mark.parametrize("name", STATISTICS)
