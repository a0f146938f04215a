"""The whole job against embeddings that another implementation computed."""

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import (
  ArraysSource,
  BackboneConfig,
  ExtractConfig,
)
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.job.job import run_extraction
from tests.extract.image_jobs import columns

ROWS = 48


@pytest.mark.slow
def test_real_photographs_through_a_pretrained_vit(shared_data, tmp_path):
  with np.load(shared_data / "cifar10_images.npz") as arrays:
    np.savez(
      tmp_path / "cifar10.npz",
      image=arrays["test_image"][:ROWS],
      label=arrays["test_label"][:ROWS],
      class_names=arrays["class_names"],
    )
    label = arrays["test_label"][:ROWS]
  job = ExtractConfig(
    source=ArraysSource(path=str(tmp_path / "cifar10.npz")),
    split="test",
    backbone=BackboneConfig(
      name="vit_ti16", weights=str(shared_data / "vit_ti16_in1k.npz")
    ),
    batch_size=32,
    embedding_dtype="float32",
    shard_rows=32,
  )
  report = run_extraction(job, tmp_path / "cache")
  assert report.counters["examples"] == ROWS
  assert verify_cache(tmp_path / "cache").ok

  found = columns(report.cache)
  np.testing.assert_array_equal(found["label"], label)
  np.testing.assert_array_equal(found["example_id"], np.arange(ROWS))
  published = shared_data / "cifar10_images_vit_ti16_embedding.npz"
  with np.load(published) as arrays:
    expected = arrays["test_embedding"][:ROWS]
  one, other = (
    rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for rows in (found["embedding"], expected)
  )
  cosine = one @ other.T
  assert cosine.diagonal().min() >= 0.9999
  # Row by row, and in this order: no other row is as near.
  np.testing.assert_array_equal(cosine.argmax(axis=1), np.arange(ROWS))
  np.testing.assert_allclose(found["embedding"], expected, atol=1e-3)
