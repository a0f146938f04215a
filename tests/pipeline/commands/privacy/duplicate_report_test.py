"""`verify --duplicates`."""

import csv
import stat

import numpy as np
import pytest

from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.reader import FeatureCache
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_caches import write_rows
from tests.pipeline.small_disk import files_no_larger_than

N = 150


def rows(seed: int) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal((N, 16))


def write(out, embedding, **changes) -> FeatureCache:
  return write_rows(
    out,
    Rows(
      embedding=embedding.astype(np.float32),
      label=np.zeros(N, int),
      example_id=np.arange(N) + 3000,
    ),
    **changes,
  )


@pytest.fixture
def private(tmp_path) -> FeatureCache:
  embedding = rows(0)
  embedding[149] = embedding[70] = embedding[1]
  embedding[140] = embedding[2] * 1.01 + 1e-3
  return write(tmp_path / "private", embedding)


@pytest.fixture
def public(tmp_path) -> FeatureCache:
  embedding = rows(1)
  embedding[9] = embedding[148] = rows(0)[1]
  embedding[10] = rows(0)[5] * 1.01 + 1e-3
  return write(tmp_path / "public", embedding, dataset="imagenet")


def test_within_a_cache(private, tmp_path, capsys):
  argv = ["verify", private.path, "--duplicates"]
  out, err = succeeds(capsys, *argv)
  assert err == ""
  assert out.splitlines() == [
    f"{private.path}: 150 rows",
    "equal bits: 2 pairs (each copy with the first)",
    "in all: 1 groups of 3 rows; the largest has 3",
    "PRIVATE, example_ids of the first groups:",
    "  3001, 3070, 3149",
  ]
  out, err = succeeds(capsys, *argv, "--min-cosine", 0.999)
  assert "cosine of 0.999 or more: 1 pairs besides" in out
  assert "in all: 2 groups of 5 rows" in out
  assert out.endswith("  3001, 3070, 3149\n  3002, 3140\n")
  assert "comparing embeddings: up to 3.8e+05 flop" in err


def test_against_another_cache(private, public, tmp_path, capsys):
  file = tmp_path / "pairs.csv"
  argv = ["verify", private.path, "--duplicates", "--against", public.path]
  out, _ = succeeds(capsys, *argv, "--min-cosine", 0.999, "--out", file)
  assert f"150 rows, against 150 of {public.path}" in out
  assert f"2 groups of 2 rows, and 3 rows of {public.path}" in out
  assert "  3001 = 3009, 3148\n  3005 = 3010\n" in out
  assert f"all pairs are in {file}, which is as private as the cache" in out
  with file.open(newline="") as opened:
    lines = list(csv.DictReader(opened))
  assert sorted(
    (line["example_id"], line["against_example_id"], line["equal_bits"])
    for line in lines
  ) == [
    ("3001", "3009", "True"),
    ("3001", "3148", "True"),
    ("3005", "3010", "False"),
  ]
  assert all(0.999 <= float(line["cosine"]) <= 1 for line in lines)
  assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_none_and_many(tmp_path, capsys):
  cache, file = write(tmp_path / "c", rows(2)), tmp_path / "pairs.csv"
  argv = ["verify", cache.path, "--duplicates", "--out", file]
  out, _ = succeeds(capsys, *argv)
  assert "no duplicates found" in out
  assert file.read_text() == "example_id,other_example_id,cosine,equal_bits\n"
  cache = write(tmp_path / "d", rows(2)[np.arange(N) // 15])
  out, _ = succeeds(capsys, "verify", cache.path, "--duplicates")
  assert "in all: 10 groups of 150 rows; the largest has 15" in out
  assert len(out.splitlines()) == 4 + 5  # only a few groups are shown
  assert out.endswith(", 3067 and 7 more\n")


def test_a_full_disk_leaves_no_file(private, tmp_path, capsys):
  file = tmp_path / "folder" / "pairs.csv"
  file.parent.mkdir()
  argv = ["verify", private.path, "--duplicates", "--out", file]
  with files_no_larger_than(20):
    line = fails(capsys, *argv, status=1)
  assert f"{file} cannot be written: File too large" in line
  assert list(file.parent.iterdir()) == []
