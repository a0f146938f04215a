"""A ledger of each test's own, and caches for all."""

import pathlib

import pytest

from oneshot_dp.extract.cache.read import FeatureCache
from tests.sample_caches import write_clusters


@pytest.fixture(autouse=True)
def ledger_file(tmp_path, monkeypatch) -> pathlib.Path:
  """Where this test's charges go; not there yet."""
  path = tmp_path / "state" / "ledger.sqlite"
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(path))
  return path


@pytest.fixture(scope="session")
def train_cache(tmp_path_factory) -> FeatureCache:
  """180 private rows of 4 classes."""
  return write_clusters(tmp_path_factory.mktemp("caches") / "train")


@pytest.fixture(scope="session")
def eval_cache(tmp_path_factory) -> FeatureCache:
  """80 other rows of the same classes."""
  folder = tmp_path_factory.mktemp("caches")
  return write_clusters(folder / "test", (20,) * 4, seed=1, split="test")
