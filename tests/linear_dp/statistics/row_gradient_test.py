"""The clipped gradient of a row: against other implementations, and broken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics import row_gradient
from oneshot_dp.linear_dp.statistics.row_gradient import (
  SOFTMAX,
  Loss,
  clipped_residual,
)

K, D = 4, 6
PAPER = Loss(name="sigmoid", bias=-10.0)
WIDE = [jnp.float64, jnp.int64]


def rho_of(
  logits, label, loss=SOFTMAX, clip_norm=0.05, length=1.0, wide="i8", prior=None
):
  """ρ of logits that are integers in steps of 2⁻¹⁶."""

  @jax.jit  # made anew, for what tests have broken meanwhile
  def rho(logits, length, label, clip_norm, prior):
    given = logits, 2.0**-16, length, label, clip_norm
    return clipped_residual(*given, loss, jnp.dtype(wide), prior)

  with jax.enable_x64(True):
    of_rows = np.float32(logits), np.full(len(label), length, np.float32)
    given = *of_rows, np.int32(label), np.float32(clip_norm), prior
    return np.asarray(rho(*given))


def test_exponentials_of_every_logit():
  logits = -np.arange(40 * 2**16 + 1, dtype=np.float32)
  found = np.asarray(jax.jit(row_gradient.exponential)(logits), np.float64)
  assert found[0] == 1
  exact = np.exp(logits.astype(np.float64) * 2.0**-16)
  np.testing.assert_allclose(found, exact, rtol=2**-21)
  least = row_gradient.exponential(jnp.array([-jnp.inf, -(2.0**30)]))
  np.testing.assert_array_equal(least, found[-1])


@pytest.mark.parametrize("num_classes", [3, 64])
@pytest.mark.parametrize("loss", [SOFTMAX, PAPER], ids=["softmax", "sigmoid"])
def test_a_row_has_its_bits_in_a_program_of_any_shape(loss, num_classes):
  rng = np.random.default_rng(3)
  logits = np.rint(rng.standard_normal((4096, num_classes)) * 2.0**18)
  label = rng.integers(0, num_classes, 4096)
  all_rows = rho_of(logits, label, loss)
  for rows in (7, 1024, 2048):
    some = rho_of(logits[:rows], label[:rows], loss)
    np.testing.assert_array_equal(some, all_rows[:rows])


def test_a_prior_is_added_to_the_logits():
  rng = np.random.default_rng(3)
  logits = np.rint(rng.standard_normal((50, K)) * 2.0**16)
  label, prior = rng.integers(0, K, 50), np.log(np.arange(1, K + 1) / 15)
  shifted = logits + np.rint(np.float32(prior) * 2.0**16)
  found = rho_of(logits, label, prior=jnp.asarray(prior, jnp.float32))
  np.testing.assert_array_equal(found, rho_of(shifted, label))
  assert not np.array_equal(found, rho_of(logits, label))


def real_rho(logits, label, loss, clip_norm, length) -> np.ndarray:
  """In float64, before it is rounded."""
  real = logits * 2.0**-16 * length
  if loss.name == "softmax":
    probability = special.softmax(real, axis=1)
  else:
    probability = special.expit(real + loss.bias)
  r = (probability - np.eye(logits.shape[1])[label]) * length
  norm = np.linalg.norm(r, axis=1, keepdims=True)
  return (
    r
    * np.minimum(1, clip_norm / np.maximum(norm, 1e-300))
    * (GRID_RADIUS / clip_norm)
  )


CLIPPED = [(0.05, 1.0), (1.0, 30.0), (100.0, 0.3)]


# Each two of the three together once.
@pytest.mark.parametrize(
  ("num_classes", "loss", "clip_norm", "length"),
  [
    (num_classes, loss, *CLIPPED[(i + j) % 3])
    for i, num_classes in enumerate([2, 7, 1000])
    for j, loss in enumerate([SOFTMAX, PAPER, Loss(name="sigmoid")])
  ],
)
def test_it_is_the_clipped_residual_on_its_grid(
  num_classes, loss, clip_norm, length
):
  rng = np.random.default_rng(num_classes)
  logits = rng.standard_normal((400, num_classes)) * 2.0 ** rng.integers(
    10, 23, (400, 1)
  )
  logits, label = np.rint(logits), rng.integers(0, num_classes, 400)
  found, other = (
    rho_of(logits, label, loss, clip_norm, length, wide) for wide in WIDE
  )
  np.testing.assert_array_equal(found, other)
  squares = (found.astype(object) ** 2).sum(axis=1)
  assert max(squares) <= GRID_RADIUS**2
  off = found - real_rho(logits, label, loss, clip_norm, length)
  # Two roundings, room for them, and float32; logits past 2⁸ are coarser.
  steps = (
    length * GRID_RADIUS / clip_norm * 2.0 ** -loss.residual_bits(num_classes)
  )
  slack = 2.5 + (1.5 + steps) * np.sqrt(num_classes)
  near = np.abs(logits * length).max(axis=1) < 2**22
  assert near.sum() > 100
  bound = slack + GRID_RADIUS * min(1, length / clip_norm) * 1e-4
  assert np.linalg.norm(off[near], axis=1).max() < bound


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize(
  "broken",
  [
    lambda r: 2 * r,
    lambda r: r * jnp.nan,
    lambda r: r / 0,
    lambda r: r + 1e30,
    lambda r: jnp.where(r > 0, jnp.inf, r),
  ],
)
def test_no_arithmetic_whatever_breaks_the_bound(monkeypatch, broken, wide):
  """What an exp, a sum or a factor that is wrong would do to a row."""
  real = jnp.minimum
  monkeypatch.setattr(
    row_gradient.jnp, "minimum", lambda a, b: broken(real(a, b))
  )
  rng = np.random.default_rng(0)
  logits = rng.integers(-(2**20), 2**20, (50, K))
  found = rho_of(logits, rng.integers(0, K, 50), wide=wide)
  assert max((found.astype(object) ** 2).sum(axis=1)) <= GRID_RADIUS**2
  assert not found.all()


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_edge_is_checked_in_integers(monkeypatch, wide, beyond):
  """(B, 0, …) is the longest; one step beside it is too long."""
  monkeypatch.setattr(
    Loss,
    "residual",
    lambda *_: jnp.array([[GRID_RADIUS, beyond, 0, 0]], jnp.float32),
  )
  monkeypatch.setattr(Loss, "residual_bits", lambda *_: 0)
  monkeypatch.setattr(row_gradient, "row_radius", lambda d, r: 2.0 * r)
  found = rho_of(np.zeros((1, K)), [0], clip_norm=float(GRID_RADIUS), wide=wide)
  assert found.tolist() == [[0 if beyond else GRID_RADIUS, 0, 0, 0]]
