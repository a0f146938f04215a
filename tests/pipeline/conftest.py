"""A ledger of each test's own, caches for all, and one finished sweep."""

import dataclasses
import functools
import pathlib
import shutil

import numpy as np
import pytest

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.pipeline.runs import pictures
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.runs.sweep import run_sweep
from tests.extract.image_jobs import write_npz
from tests.pipeline.command_line import CONFIG
from tests.pipeline.sample_caches import write_clusters


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedSweep:
  """A directory that nobody may change, and the rows that it holds."""

  path: pathlib.Path
  rows: list[SweepRow]


@pytest.fixture(autouse=True)
def ledger_dir(tmp_path, monkeypatch) -> pathlib.Path:
  folder = tmp_path / "ledgers"
  monkeypatch.setenv("ONESHOT_DP_LEDGER_DIR", str(folder))
  return folder


@pytest.fixture(scope="session")
def train_cache(tmp_path_factory) -> FeatureCache:
  return write_clusters(tmp_path_factory.mktemp("caches") / "train")


@pytest.fixture(scope="session")
def eval_cache(tmp_path_factory) -> FeatureCache:
  return write_clusters(
    tmp_path_factory.mktemp("caches") / "test",
    counts=(20, 20, 20, 20),
    split="test",
  )


@pytest.fixture
def users(tmp_path) -> tuple[FeatureCache, FeatureCache]:
  """Three rows of each of many users; others to evaluate on."""
  train, test = (
    write_clusters(
      tmp_path / split,
      (each,) * 4,
      split=split,
      privacy_unit="user",
      unit_id=first + np.arange(4 * each) // 3,
    )
    for split, each, first in (("train", 30, 0), ("test", 20, 40))
  )
  return train, test


@pytest.fixture(scope="session")
def finished_sweep(train_cache, eval_cache, tmp_path_factory) -> FinishedSweep:
  folder = tmp_path_factory.mktemp("sweep")
  run = Run(
    train=train_cache,
    evaluation=eval_cache,
    out=folder / "results",
    num_draws=2,
    baseline=True,
    ledger_dir=folder / "ledgers",
  )
  privacy = PrivacyConfig(delta=1e-5)
  rows = run_sweep(run, (0.5, 8.0, 2.0), privacy, HeadConfig())
  return FinishedSweep(path=folder / "results", rows=rows)


@pytest.fixture(autouse=True, scope="module")
def few_steps():
  """Whitened heads of this process have a few steps, and not 19."""
  few = functools.partial(WhiteningRule, num_steps=5)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(whitened, "WhiteningRule", few)
    yield


@pytest.fixture
def draws():
  """Pictures are drawn in spite of `no_pictures`."""


@pytest.fixture
def no_pictures(request, monkeypatch):
  """Runs draw nothing, which takes most of the time of a small one."""
  if "draws" in request.fixturenames:
    return
  monkeypatch.setattr(pictures, "draw", lambda *_: None)


@pytest.fixture
def head(finished_sweep, tmp_path) -> pathlib.Path:
  """A head to spoil."""
  folder = tmp_path / "head"
  shutil.copytree(finished_sweep.path / "heads/epsilon-2-draw-0", folder)
  return folder


@pytest.fixture
def place(train_cache, eval_cache, finished_sweep, tmp_path):
  """Puts the paths of this test into a command line."""
  (tmp_path / "config.py").write_text(CONFIG)
  photos = f'ImageFolderSource(root="{tmp_path / "photos"}")'
  (tmp_path / "photos.py").write_text(
    CONFIG.replace('ArraysSource(path="images.npz")', photos)
  )
  paths = {
    "train": train_cache.path,
    "eval": eval_cache.path,
    "head": finished_sweep.path / "heads/epsilon-2-draw-0",
    "out": tmp_path / "out",
    "config": tmp_path / "config.py",
    "images": tmp_path / "images.npz",
    "tmp": tmp_path,
  }

  def fill(command: str) -> list[str]:
    return command.format(**paths).split()

  return fill


@pytest.fixture
def images(tmp_path) -> pathlib.Path:
  return write_npz(tmp_path / "images.npz", 70)


@pytest.fixture
def spoilt(tmp_path) -> pathlib.Path:
  """A cache of one's own, to damage."""
  return write_clusters(tmp_path / "cache").path


@pytest.fixture
def rows_npz(tmp_path) -> None:
  """Arrays to import, {tmp}/rows.npz."""
  rows = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
  np.savez(tmp_path / "rows.npz", embedding=rows, label=np.arange(9) % 3)
