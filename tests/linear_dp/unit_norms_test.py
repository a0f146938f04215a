"""A unit's gradient has one norm: the bound, and units that lie whole."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oneshot_dp.linear_dp import rows as rows_module
from oneshot_dp.linear_dp import statistics, unit_norms
from oneshot_dp.linear_dp.dataset import UNIT_WEIGHT
from oneshot_dp.linear_dp.distributed.hosts import Hosts
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import rows_of
from oneshot_dp.linear_dp.sum_kernels import exact_sum
from oneshot_dp.linear_dp.unit_norms import (
  MAX_UNIT_SCALE,
  norm_squared_bound,
  scale_units,
)
from tests.linear_dp.statistic_catalogue import (
  SENSITIVITY,
  D,
  Statistic,
  data_of,
  hostile_rows,
)

NUM_CLASSES = 40
HOSTILE_IDS = [0, -1, 1, 2**63 - 1, -(2**63), 2**62, -(2**62), 7]


def exact_norm_squared(a, z):
  """‖Σ_j a_j ⊗ z_j‖² of one unit, in Python's integers."""
  product = a.astype(object).T @ z.astype(object)
  return int((product**2).sum())


def unit_of(rng, slots, width=5, dim=7):
  """Left factors, rows and weights of one unit that shares W."""
  weight = np.full(slots, UNIT_WEIGHT // slots)
  a = rng.standard_normal((slots, width))
  a *= (weight / np.linalg.norm(a, axis=1))[:, None]
  z = rng.standard_normal((slots, dim))
  z *= ((ROW_NORM - 3) / np.linalg.norm(z, axis=1))[:, None]
  return np.trunc(a), np.rint(z), weight


def scaled(a, z, weight, slots):
  # Compiled as a whole, as in `sum_kernels`: one by one, its operations are
  # dozens of programs. Anew for each call, since a test may replace a part.
  compiled = jax.jit(
    lambda a, z, weight: scale_units(a, z, weight, UNIT_WEIGHT, slots)
  )
  with jax.enable_x64(True):
    result = compiled(
      jnp.asarray(a, jnp.float64),
      jnp.asarray(z, jnp.int16),
      jnp.asarray(weight, jnp.int32),
    )
    return np.asarray(result)


# The lemma.


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2, 5, 40])
@pytest.mark.parametrize("scale", [1, MAX_UNIT_SCALE])
def test_norm_squared_bound_of_any_unit_is_no_less_than_the_exact_one(
  slots, scale
):
  rng = np.random.default_rng(slots)
  grid = (scale * SENSITIVITY) ** 2 * 2.0**-52
  compiled_bound = jax.jit(norm_squared_bound, static_argnums=2)
  for alike in (False, True):
    a, z, _ = unit_of(rng, slots)
    if alike:  # as long as it can be: nothing cancels
      a = np.repeat(a[:1], slots, 0)
      z = np.repeat(z[:1], slots, 0)
    a = np.trunc(a * scale)
    with jax.enable_x64(True):
      products = jnp.asarray(z @ z.T)[None]
      bound = compiled_bound(jnp.asarray(a)[None], products, grid)
    exact = exact_norm_squared(a, z)
    assert float(bound[0]) % 1 == 0
    assert exact <= int(bound[0]) * int(grid)
    assert int(bound[0]) * int(grid) <= exact + 3 * slots**2 * int(grid)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, 40])
def test_scaled_unit_of_any_size_reaches_its_bound_and_no_more(slots):
  rng = np.random.default_rng(slots)
  a, z, weight = unit_of(rng, slots)
  result = scaled(a, z, weight, slots)
  assert (result % 1 == 0).all()
  norm_squared = exact_norm_squared(result, z)
  assert norm_squared <= SENSITIVITY**2
  assert norm_squared >= (0.998 * SENSITIVITY) ** 2


def test_scaled_unit_that_nearly_cancels_is_not_made_longer_than_the_limit():
  a, z, weight = unit_of(np.random.default_rng(0), 2)
  a[1] = -a[0]
  z[1] = z[0]
  z[1, 0] += 1
  result = scaled(a, z, weight, 2)
  np.testing.assert_array_equal(result, a * MAX_UNIT_SCALE)
  assert exact_norm_squared(result, z) <= SENSITIVITY**2


@pytest.mark.slow
def test_scaled_units_depend_on_no_other_unit_and_on_no_order():
  rng = np.random.default_rng(3)
  units = [unit_of(rng, 5) for _ in range(6)]
  a_of_all, z_of_all, weight_of_all = map(
    np.concatenate, zip(*units, strict=True)
  )
  together = scaled(a_of_all, z_of_all, weight_of_all, 5)
  for i, (a, z, weight) in enumerate(units):
    order = rng.permutation(5)
    alone = scaled(a[order], z[order], weight[order], 5)
    np.testing.assert_array_equal(alone, together[5 * i : 5 * i + 5][order])


def test_rows_behind_the_last_whole_unit_add_nothing():
  a, z, weight = unit_of(np.random.default_rng(4), 7)
  result = scaled(a, z, weight, 3)
  assert result[:6].any()
  assert not result[6:].any()


def test_unit_whose_weights_exceed_w_adds_nothing():
  a, z, weight = unit_of(np.random.default_rng(5), 4)
  weight[0] += 1
  assert not scaled(a, z, weight, 4).any()


def test_unit_that_is_scaled_too_far_adds_nothing(monkeypatch):
  """The bound is what is checked after the scaling, whatever the scale was."""
  a, z, weight = unit_of(np.random.default_rng(6), 4)
  monkeypatch.setattr(unit_norms, "_room_for_rounding", lambda *_: -1e-3)
  assert not scaled(a, z, weight, 4).any()


# Units lie whole.


def residual_of_many_classes():
  rng = np.random.default_rng(1)
  kernel = 3 * rng.standard_normal((D, NUM_CLASSES))
  return Statistic(
    statistics.residual, (*statistics.integer_kernel(kernel), 0.03)
  )


def units_of_every_size():
  """Rows of 8 units: of one row, of few, of more classes than a chunk."""
  rng = np.random.default_rng(2)
  sizes = [1, 1, 2, 3, 5, 9, 30, 109]
  x, _ = hostile_rows(rng, n=sum(sizes))
  label = rng.integers(0, NUM_CLASSES, sum(sizes))
  unit = np.repeat(np.array(HOSTILE_IDS), sizes)
  order = rng.permutation(len(unit))
  return x[order], label[order], unit[order]


def use_devices(monkeypatch, num_devices, chunk_rows):
  devices = jax.devices()[:num_devices]
  monkeypatch.setattr(jax, "local_devices", lambda **_: devices)
  monkeypatch.setattr(rows_module, "_chunk_rows", lambda *_: chunk_rows)


@pytest.mark.long
@pytest.mark.parametrize(
  ("num_devices", "chunk_rows"), [(1, 8), (2, 8), (4, 512), (8, 8), (8, 128)]
)
def test_unit_of_any_size_moves_a_gradient_by_at_most_the_sensitivity(
  num_devices, chunk_rows, monkeypatch
):
  x, label, unit = units_of_every_size()
  statistic = residual_of_many_classes()
  n = len(label)

  def exact(kept):
    data = data_of(
      x[kept], label[kept], unit[kept], num_classes=NUM_CLASSES, n=n
    )
    return statistic.exact(data)

  expected = exact(np.full(n, True))
  use_devices(monkeypatch, num_devices, chunk_rows)
  whole = exact(np.full(n, True))
  np.testing.assert_array_equal(whole, expected)
  for unit_id in HOSTILE_IDS:
    moved = whole - exact(unit != unit_id)
    squared = sum(v * v for v in moved.ravel().tolist())
    assert (0.99 * SENSITIVITY) ** 2 <= squared <= SENSITIVITY**2


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_hosts_that_share_units_add_up_to_the_bits_of_one(num_hosts):
  """What a host has of a unit is all of it: cut in two, it would be longer."""
  x, label, unit = units_of_every_size()
  statistic = residual_of_many_classes()
  data = data_of(x, label, unit, num_classes=NUM_CLASSES)
  parts = []
  for index in range(num_hosts):
    own = dataclasses.replace(data, hosts=Hosts(index, num_hosts))
    rows = statistic.rows(own)
    parts.append(exact_sum(rows, statistic.left, statistic.public))
  np.testing.assert_array_equal(sum(parts), statistic.exact(data))


@pytest.mark.slow
def test_unit_of_all_rows_moves_a_gradient_by_at_most_the_sensitivity():
  x, label, _ = units_of_every_size()
  data = data_of(x, label, np.full(len(label), 5), num_classes=NUM_CLASSES)
  total = residual_of_many_classes().exact(data)
  squared = sum(v * v for v in total.ravel().tolist())
  assert (0.99 * SENSITIVITY) ** 2 <= squared <= SENSITIVITY**2


@pytest.mark.parametrize("num_devices", [1, 4])
def test_each_unit_lies_in_consecutive_slots_of_one_device(
  num_devices, monkeypatch
):
  _, label, unit = units_of_every_size()
  x = np.random.default_rng(0).standard_normal((len(label), D))
  x = x.astype(np.float32)  # without rows that cancel, which weigh nothing
  use_devices(monkeypatch, num_devices, 8 * num_devices)
  data = data_of(x, label, unit, num_classes=NUM_CLASSES)
  sizes = []
  for chunk in rows_of(data).chunks():
    slots = chunk.unit_slots
    assert slots is not None
    weight = np.asarray(chunk.weight).reshape(num_devices, -1)
    units_per_device = weight.shape[1] // slots
    assert not weight[:, units_per_device * slots :].any()
    of_units = weight[:, : units_per_device * slots].reshape(-1, slots)
    total = of_units.sum(axis=1)
    # All of W, but for what rounding down takes, or nothing.
    assert ((total == 0) | (total > UNIT_WEIGHT - slots)).all()
    sizes += (of_units > 0).sum(axis=1)[total > 0].tolist()
  expected = [len({*label[unit == unit_id]}) for unit_id in HOSTILE_IDS]
  assert sorted(sizes) == sorted(expected)


@pytest.mark.slow
def test_rows_of_a_unit_one_by_one_are_bounded_by_weights_and_not_scaled():
  """Scaled alone, each of a unit's rows could move a sum by W·R."""
  x, label, _ = units_of_every_size()
  statistic = Statistic(
    statistics.residual, residual_of_many_classes().public, each=True
  )
  data = data_of(x, label, np.zeros(len(label)), num_classes=NUM_CLASSES)
  total = statistic.exact(data)
  assert sum(v * v for v in total.ravel().tolist()) <= SENSITIVITY**2
  assert all(c.unit_slots is None for c in statistic.rows(data).chunks())


@pytest.mark.slow
def test_unit_of_ten_thousand_rows_and_one_of_a_single_row_weigh_alike():
  """Each moves one sum by its bound, and no more."""
  rng = np.random.default_rng(7)
  num_rows = 10_001
  x = rng.standard_normal((num_rows, D)).astype(np.float32)
  label = rng.integers(0, 3, num_rows)
  unit = np.full(num_rows, -5)
  unit[4321] = 5
  kernel = 3 * rng.standard_normal((D, 3))
  statistic = Statistic(
    statistics.residual, (*statistics.integer_kernel(kernel), 0.03)
  )

  def exact(kept):
    data = data_of(x[kept], label[kept], unit[kept], num_classes=3, n=num_rows)
    return statistic.exact(data)

  whole = exact(np.full(num_rows, True))
  for unit_id in (-5, 5):
    moved = whole - exact(unit != unit_id)
    squared = sum(v * v for v in moved.ravel().tolist())
    assert (0.99 * SENSITIVITY) ** 2 <= squared <= SENSITIVITY**2
