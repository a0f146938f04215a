"""Buckets that a server of this process serves, empty or with a head."""

import pathlib

import pytest

from oneshot_dp.extract import places
from oneshot_dp.pipeline.cli import main
from tests.extract import object_server


@pytest.fixture
def server(tmp_path, monkeypatch):
  """A store without an object."""
  with object_server.served(monkeypatch, tmp_path) as made:
    yield made


@pytest.fixture(params=["s3", "gs"])
def out(request, server) -> places.Url:
  """Where a run goes, in each kind of store."""
  return places.Url(f"{request.param}://{object_server.BUCKET}/runs/1")


@pytest.fixture
def s3_out(server) -> places.Url:
  """Where a run goes."""
  return places.Url(f"s3://{object_server.BUCKET}/runs/1")


@pytest.fixture(scope="session")
def trained(train_cache, tmp_path_factory) -> pathlib.Path:
  """The folder of a head, beside its ledger."""
  out = tmp_path_factory.mktemp("trained")
  words = ["--cache", train_cache.path, "--epsilon", "2", "--delta", "1e-5"]
  words += ["--ledger", out / "ledger", "--out", out / "head"]
  assert main(["train", *map(str, words)]) == 0
  return out


@pytest.fixture
def store_with_head(trained, tmp_path, monkeypatch):
  """A store that has the head."""
  with object_server.served(monkeypatch, tmp_path) as made:
    for path in (trained / "head").iterdir():
      made.objects[f"heads/2/{path.name}"] = path.read_bytes()
    yield made


@pytest.fixture
def bucket(store_with_head):
  """The objects of the store."""
  return store_with_head.objects
