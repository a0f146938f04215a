"""`train --hosts`: what two processes refuse that each alone would not see."""

import socket

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import FIXED_GRAPH, NO_OWNER
from oneshot_dp.extract.cache import write
from oneshot_dp.extract.cache.format import CacheInfo
from tests.pipeline.command_line import one_line, start
from tests.sample_caches import BACKBONE, DIM, clusters

SHARD_ROWS = 64


@pytest.fixture
def run_on_two_hosts():
  """Returns a function that runs a command on two hosts: what each said."""

  def run(*words: object) -> list[tuple[int, str]]:
    with socket.socket() as found:
      found.bind(("127.0.0.1", 0))
      port = found.getsockname()[1]
    hosts = []
    for index in range(2):
      place = ("--hosts", f"{index}/2@127.0.0.1:{port}")
      hosts.append(start([*words, *place], ONESHOT_DP_JOIN_SECONDS="100"))
    said = []
    for host in hosts:
      _, stderr = host.communicate(timeout=150)
      said.append((host.returncode, stderr))
    return said

  return run


@pytest.fixture
def cache_of_an_id_twice(tmp_path, monkeypatch):
  """Rows of which the first two shards, of two hosts, have one id."""
  monkeypatch.setattr(write, "_check_ids", lambda *_: None)
  embedding, label = clusters()
  example_id = np.arange(len(label))
  example_id[SHARD_ROWS] = 3
  return write.write_cache(
    tmp_path / "rows",
    cache_info(len(label)),
    [{"embedding": embedding, "label": label, "example_id": example_id}],
  )


@pytest.fixture
def cache_of_too_heavy_an_owner(tmp_path):
  """Rows of which one owner has two, in the shards of two hosts, at W each."""
  embedding, label = clusters()
  owners = np.full((len(label), 2), NO_OWNER)
  owners[:, 0] = np.arange(len(label))
  owners[SHARD_ROWS, 0] = 3
  return write.write_cache(
    tmp_path / "rows",
    cache_info(len(label), unit="user" + FIXED_GRAPH, owners_per_row=2),
    [
      {
        "embedding": embedding,
        "label": label,
        "unit_id": owners,
        "weight_divisor": np.ones(len(label), np.uint32),
      }
    ],
  )


def cache_info(
  num_rows: int, *, unit: str = "example", owners_per_row: int = 1
) -> CacheInfo:
  return CacheInfo(
    dataset="clusters",
    split="train",
    source_num_examples=num_rows,
    feature_dim=DIM,
    class_names=("a", "b", "c", "d"),
    backbone=BACKBONE,
    embedding_dtype="float32",
    shard_rows=SHARD_ROWS,
    unit=unit,
    owners_per_row=owners_per_row,
  )


@pytest.mark.long
@pytest.mark.parametrize(
  ("rows", "fault"),
  [
    ("cache_of_an_id_twice", "example_id=3: it comes more than once"),
    ("cache_of_too_heavy_an_owner", "one of their owners weigh more"),
  ],
)
def test_a_fault_across_the_shards_of_two_hosts_is_refused_before_the_charge(
  request, tmp_path, ledger_file, run_on_two_hosts, rows, fault
):
  cache = request.getfixturevalue(rows)

  said = run_on_two_hosts(
    *("train", "--cache", cache.path, "--epsilon", 2, "--delta", 1e-5),
    *("--out", tmp_path / "head"),
  )

  for status, stderr in said:
    assert status == 2, stderr
    assert fault in one_line(stderr)
  assert not ledger_file.exists()


@pytest.mark.long
def test_private_test_rows_are_compared_across_two_hosts(
  tmp_path, ledger_file, train_cache, cache_of_an_id_twice, run_on_two_hosts
):
  said = run_on_two_hosts(
    *("sweep", "--cache", train_cache.path, "--epsilons", 2, "--delta", 1e-5),
    *("--eval-cache", cache_of_an_id_twice.path, "--private-eval", 1),
    *("--out", tmp_path / "run"),
  )

  for status, stderr in said:
    assert status == 2, stderr
    assert "example_id=3: it comes more than once" in one_line(stderr)
  assert not ledger_file.exists()
