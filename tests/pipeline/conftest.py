"""A ledger of each test's own, and caches for all."""

import itertools
import os
import pathlib

import pytest

from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.sample_heads import make_charge_request
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


@pytest.fixture(scope="session")
def digits_head(tmp_path_factory):
  """A head of the digits' embeddings."""
  from tests.pipeline import image_heads

  return image_heads.write_image_head(
    tmp_path_factory.mktemp("heads") / "digits"
  )


@pytest.fixture(scope="session")
def digits_photos(tmp_path_factory) -> pathlib.Path:
  """A folder of 100 digits as PNG files."""
  from tests.pipeline import image_heads

  folder = tmp_path_factory.mktemp("photos")
  image_heads.write_images(folder)
  return folder


@pytest.fixture
def ledger(ledger_file) -> Ledger:
  """The ledger of `ledger_file`."""
  return Ledger(ledger_file)


@pytest.fixture
def charge(ledger):
  """Charges costs for a run of its own; returns the charges' ids."""
  # A second charge into the place of an unfinished run would resume that run,
  # so that each has a place that no other has.
  run_numbers = itertools.count()

  def charge_run(*costs, run=None, identity=None, **changes):
    run = run or f"/runs/{next(run_numbers)}"
    request = make_charge_request(*costs, **changes)
    return ledger.charge([request], pathlib.Path(run), identity or {})

  return charge_run


@pytest.fixture
def umask():
  """Sets it; the test's end sets it back."""
  before = os.umask(0o077)
  yield os.umask
  os.umask(before)


@pytest.fixture
def place(tmp_path, train_cache, eval_cache, monkeypatch):
  """The words of a command, in the test's own folder."""
  monkeypatch.chdir(tmp_path)

  def words(line):
    train = f"train --cache {train_cache.path} --delta 1e-5"
    sweep = (
      f"sweep --cache {train_cache.path} --eval-cache {eval_cache.path}"
      " --delta 1e-5"
    )
    return line.replace("TRAIN", train).replace("SWEEP", sweep).split()

  return words
