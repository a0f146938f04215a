"""One sweep of each kind of head, shared by all that is tested of it."""

import functools
import pathlib
from collections.abc import Callable

import numpy as np
import pytest

from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.importing.import_features import import_features
from tests.head_contract import DELTA, DRAWS, Kind, Sweep
from tests.pipeline.sample_caches import CLASSES, DIM, write_clusters


@pytest.fixture(scope="session")
def sweeps(
  train_cache, eval_cache, tmp_path_factory
) -> Callable[[Kind], Sweep]:
  """The sweep of a kind, made when it is first asked for."""

  @functools.cache
  def sweep(kind: Kind) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    argv = [
      *("sweep", "--cache", train_cache.path, "--eval-cache", eval_cache.path),
      *("--epsilons", *kind.epsilons, "--delta", DELTA, "--num-draws", DRAWS),
      *("--baseline", *kind.flags.split(), "--ledger-dir", folder / "ledgers"),
      *("--out", folder / "results"),
    ]
    assert main([str(word) for word in argv]) == 0
    return Sweep.of(folder)

  return sweep


@pytest.fixture
def spoilt_cache(tmp_path) -> FeatureCache:
  """One bit of a shard is another."""
  cache = write_clusters(tmp_path / "cache")
  shard = cache.path / cache.shards[1].file
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  shard.write_bytes(content)
  return cache


@pytest.fixture(scope="session")
def visits(tmp_path_factory) -> FeatureCache:
  """Three rows of each of twenty users."""
  folder: pathlib.Path = tmp_path_factory.mktemp("visits")
  rng = np.random.default_rng(0)
  np.savez(
    folder / "visits.npz",
    embedding=rng.standard_normal((60, DIM)).astype(np.float32),
    label=rng.integers(0, CLASSES, 60),
    unit_id=np.arange(60) // 3,
  )
  return import_features(
    folder / "visits.npz", folder / "c", num_classes=CLASSES, unit_name="user"
  )
