import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads import logistic
from oneshot_dp.linear_dp.heads.logistic import fit_logistic
from oneshot_dp.linear_dp.trainer import TrainingRows
from tests.linear_dp.blocks import Block, in_blocks, make_block

N, DIM, CLASSES = 300, 5, 4


def overlapping(n: int = N, dtype: type = np.float32) -> Block:
  """Classes that no head tells apart for sure; features far from standard."""
  rng = np.random.default_rng(1)
  label = rng.integers(0, CLASSES, n)
  centres = 1.5 * rng.standard_normal((CLASSES, DIM))
  rows = centres[label] + rng.standard_normal((n, DIM))
  rows = rows * [1, 5, 0.2, 1, 30] + [0, 20, 1, -3, 0]
  return make_block(rows.astype(dtype), label)


def fit(
  block: Block,
  sizes: tuple[int, ...] = (100,),
  spoil: Mapping[str, int] | None = None,
  **options: Any,
) -> LinearHead:
  rows = rows_of(block, lambda: in_blocks(block, sizes), **(spoil or {}))
  return fit_logistic(rows, 1 / rows.num_examples, **options)


def rows_of(block: Block, read, **changes: Any) -> TrainingRows:
  rows = TrainingRows(
    blocks=read,
    feature_dim=block.embedding.shape[1],
    num_classes=CLASSES,
    num_examples=len(block),
  )
  return dataclasses.replace(rows, **changes)


def logits(head: LinearHead, block: Block) -> np.ndarray:
  found = np.asarray(block.embedding, np.float64) @ head.kernel + head.bias
  return found - found.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_it_is_scikit_learns(dtype):
  block = overlapping(dtype=dtype)
  wide = block.embedding.astype(np.float64)
  scaler = StandardScaler().fit(wide)
  oracle = LogisticRegression(C=1.0, tol=1e-8, max_iter=2000)
  oracle.fit(scaler.transform(wide), block.label)
  expected = oracle.decision_function(scaler.transform(wide))
  expected -= expected.mean(axis=1, keepdims=True)
  np.testing.assert_allclose(
    logits(fit(block), block), expected, atol=0.02 * np.abs(expected).max()
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("batch", "resident_bytes"), [(7, 0), (64, 2**20), (300, 2**20), (5000, 0)]
)
def test_batches_padding_and_memory_do_not_matter(
  monkeypatch, batch, resident_bytes
):
  block = overlapping()
  expected = logits(fit(block), block)
  monkeypatch.setattr(logistic, "_BATCH_ROWS", batch)
  head = fit(block, (31, 7), resident_bytes=resident_bytes)
  np.testing.assert_allclose(
    logits(head, block), expected, atol=0.02 * np.abs(expected).max()
  )


@pytest.mark.parametrize(("resident_bytes", "passes"), [(2**20, 1), (0, None)])
def test_rows_that_fit_are_read_once(resident_bytes, passes):
  block, reads, steps = overlapping(), [], []

  def read():
    reads.append(1)
    return in_blocks(block, (100,))

  fit_logistic(
    rows_of(block, read),
    1 / N,
    resident_bytes=resident_bytes,
    on_step=lambda: steps.append(1),
  )
  assert len(steps) > 5
  assert len(reads) == (passes or len(steps) + 3)


@pytest.mark.parametrize("ulps", [0, 1], ids=["constant", "all but constant"])
def test_a_constant_feature_counts_for_nothing(ulps):
  block = overlapping()
  rows = block.embedding.copy()
  rows[:, 2] = 1000 + ulps * np.spacing(np.float32(1000)) * (block.label % 2)
  head = fit(make_block(rows, block.label))
  np.testing.assert_array_equal(head.kernel[2], 0)
  assert np.isfinite(head.kernel).all()


@pytest.mark.parametrize(
  ("spoil", "said"),
  [
    ({"num_examples": N + 1}, "gave 300 rows where its metadata says 301"),
    ({"num_classes": 3}, "its label is outside"),
  ],
)
def test_what_it_refuses(spoil, said):
  block = overlapping()
  with pytest.raises(InputError, match=said):
    fit(block, spoil=spoil)
  block.embedding[17, 3] = np.nan
  with (
    np.errstate(invalid="ignore"),
    pytest.raises(InputError, match="not finite"),
  ):
    fit(block)


@pytest.mark.slow
def test_it_reaches_the_reference_on_real_features(shared_data, monkeypatch):
  # Of three hundred: what the others gain is a constant loss, no accuracy.
  monkeypatch.setattr(logistic, "MAX_STEPS", 30)
  arrays = np.load(shared_data / "eurosat_vit_ti16_features.npz")
  block = make_block(arrays["train_embedding"], arrays["train_label"])
  head = fit(block, (4096,), {"num_classes": 10})
  test = make_block(arrays["test_embedding"], arrays["test_label"])
  accuracy = (logits(head, test).argmax(axis=1) == test.label).mean()
  assert accuracy > 0.941 - 0.002
