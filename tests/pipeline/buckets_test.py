"""Heads, tables and vectors in buckets, as on a disk."""

import pathlib

import numpy as np
import pytest

from oneshot_dp.pipeline.cli import main
from tests.extract import object_server
from tests.pipeline.command_line import fails, succeeds

BUCKET = f"s3://{object_server.BUCKET}"
HEAD = f"{BUCKET}/heads/2"
_LOST_SLASH = "s3:/data"


@pytest.fixture(scope="module")
def trained(train_cache, tmp_path_factory) -> pathlib.Path:
  """The folder of a head, beside its ledger."""
  out = tmp_path_factory.mktemp("trained")
  words = ["--cache", train_cache.path, "--epsilon", "2", "--delta", "1e-5"]
  words += ["--ledger", out / "ledger", "--out", out / "head"]
  assert main(["train", *map(str, words)]) == 0
  return out


@pytest.fixture
def bucket(trained, tmp_path, monkeypatch):
  """A store that has the head; its objects."""
  with object_server.served(monkeypatch, tmp_path) as server:
    for path in (trained / "head").iterdir():
      server.objects[f"heads/2/{path.name}"] = path.read_bytes()
    yield server.objects


def test_evaluate_scores_a_head_in_a_bucket_as_on_a_disk(
  bucket, trained, eval_cache, capsys
):
  flags = ["--cache", eval_cache.path, "--ledger", trained / "ledger"]
  here, _ = succeeds(capsys, "evaluate", trained / "head", *flags)

  there, _ = succeeds(capsys, "evaluate", HEAD, *flags)

  assert there == here


def test_verify_finds_the_charge_of_a_head_in_a_bucket(bucket, trained, capsys):
  flags = ["--ledger", trained / "ledger"]

  said, _ = succeeds(capsys, "verify", HEAD, *flags)

  assert said.startswith("ok: verified: these weights match a charge")


def test_verify_refuses_a_head_in_a_bucket_that_was_edited(
  bucket, trained, capsys
):
  bucket["heads/2/README.md"] += b"\nand more"

  assert main(["verify", HEAD, "--ledger", str(trained / "ledger")]) == 1

  said = capsys.readouterr()
  assert f"{HEAD}/README.md is damaged" in said.out + said.err
  assert _LOST_SLASH not in said.out + said.err


def test_report_writes_its_page_beside_the_head_again_and_again(bucket, capsys):
  for _ in range(2):
    said, _ = succeeds(capsys, "report", HEAD)

  assert said.strip() == f"{HEAD}/report.html"
  assert bucket["heads/2/report.html"].startswith(b"<!")


def test_export_reads_a_head_in_a_bucket(bucket, trained, tmp_path, capsys):
  flags = ["--ledger", trained / "ledger", "--to", tmp_path / "model"]

  succeeds(capsys, "export", HEAD, *flags)

  assert (tmp_path / "model" / "receipt.json").exists()


def test_predict_writes_its_table_into_a_bucket_once(
  bucket, trained, eval_cache, tmp_path, capsys
):
  words = ["predict", HEAD, eval_cache.path]
  succeeds(capsys, *words, "--out", tmp_path / "table.csv")

  succeeds(capsys, *words, "--out", f"{BUCKET}/table.csv")

  assert bucket["table.csv"] == (tmp_path / "table.csv").read_bytes()
  line = fails(capsys, *words, "--out", f"{BUCKET}/table.csv")
  assert f"{BUCKET}/table.csv already exists" in line
  bucket["table.csv"] = b"of before"
  succeeds(capsys, *words, "--out", f"{BUCKET}/table.csv", "--overwrite")
  assert bucket["table.csv"] == (tmp_path / "table.csv").read_bytes()


def test_import_reads_vectors_in_a_bucket(bucket, tmp_path, capsys):
  vectors = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
  np.savez(tmp_path / "v.npz", embedding=vectors, label=np.arange(20) % 2)
  bucket["vectors/v.npz"] = (tmp_path / "v.npz").read_bytes()
  flags = ["--num-classes", "2", "--out", f"{BUCKET}/cache"]

  said, _ = succeeds(capsys, "import", f"{BUCKET}/vectors/v.npz", *flags)

  assert said.startswith(f"{BUCKET}/cache: v, split train, 20 embeddings")
  assert "cache/cache_info.json" in bucket


@pytest.mark.parametrize(
  "words",
  [
    "evaluate s3://data/none --cache s3://data/none",
    "predict s3://data/none s3://data/x.jpg --out s3://data/t.csv",
    "report s3://data/none",
    "verify s3://data/none",
    "export s3://data/none --to model",
    "import s3://data/none.npz --out s3://data/c",
    "train --cache s3://data/none --epsilon 1 --delta 1e-5 --out h",
    "train --cache TRAIN --epsilon 1 --delta 1e-5 --out s3://data/h",
    "train --cache TRAIN --epsilon 1 --delta 1e-5 --out h --start s3://data/s",
    "budget --ledger s3://data/ledger",
  ],
)
def test_what_is_not_in_a_bucket_is_named_with_both_slashes(
  bucket, train_cache, tmp_path, monkeypatch, capsys, words
):
  monkeypatch.chdir(tmp_path)
  words = words.replace("TRAIN", str(train_cache.path))

  line = fails(capsys, *words.split())

  assert "s3://data/" in line
  assert _LOST_SLASH not in line


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_output_in_a_bucket_is_refused_before_anything_is_read(
  bucket, capsys, dry
):
  words = "train --cache none --epsilon 1 --delta 1e-5 --out s3://data/h"

  line = fails(capsys, *words.split(), *dry)

  assert "s3://data/h is not a place on a disk" in line
