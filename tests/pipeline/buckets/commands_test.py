"""Commands read and write in buckets as on a disk."""

import pathlib

import numpy as np
import pytest

from oneshot_dp.pipeline.cli import main
from tests.extract import object_server
from tests.pipeline.buckets.objects import BUCKET, HEAD, names_in
from tests.pipeline.command_line import fails, succeeds

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow

LOST_SLASH = "s3:/data"


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

  assert said.startswith("ok: these weights match a charge")


def test_verify_refuses_a_head_in_a_bucket_that_was_edited(
  bucket, trained, capsys
):
  bucket["heads/2/README.md"] = b"and more"

  assert main(["verify", HEAD, "--ledger", str(trained / "ledger")]) == 1

  said = capsys.readouterr()
  assert f"{HEAD}/README.md is damaged" in said.out + said.err
  assert LOST_SLASH not in said.out + said.err


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
    "train --cache TRAIN --epsilon 1 --delta 1e-5 --out s3://data/heads",
    "train --cache TRAIN --epsilon 1 --delta 1e-5 --out h --from s3://data/n",
    "export s3://data/heads/2 --to s3://data/heads",
    "train --cache TRAIN --epsilon 1 --delta 1e-5 --out h --start s3://data/s",
    "budget --ledger s3://data/ledger",
    "demo --out s3://data/demo",
  ],
)
def test_what_is_not_in_a_bucket_is_named_with_both_slashes(
  bucket, train_cache, tmp_path, monkeypatch, capsys, words
):
  monkeypatch.chdir(tmp_path)
  words = words.replace("TRAIN", str(train_cache.path))

  line = fails(capsys, *words.split())

  assert "s3://data/" in line
  assert LOST_SLASH not in line


def test_inspect_says_what_a_head_in_a_bucket_is(bucket, trained, capsys):
  here, _ = succeeds(capsys, "inspect", trained / "head")

  there, _ = succeeds(capsys, "inspect", HEAD)

  assert there.splitlines()[1:] == here.splitlines()[1:]
  assert there.startswith(f"a head        {HEAD}\n")


@pytest.mark.parametrize(
  ("kind", "first_objects", "missing"),
  [
    ("head", ("README.md", "head.safetensors"), "receipt.json"),
    ("run", ("accuracy.pdf", "accuracy.png"), "results.json"),
  ],
)
def test_inspect_names_what_a_head_or_run_that_is_half_put_lacks(
  bucket, capsys, kind, first_objects, missing
):
  for name in first_objects:
    bucket[f"half/{name}"] = b"of a run that was stopped"

  assert main(["inspect", f"{BUCKET}/half"]) == 1

  said = capsys.readouterr()
  assert said.out.startswith(f"a {kind}")
  assert f"{BUCKET}/half has no {missing}" in said.out + said.err


def test_inspect_takes_what_other_programs_call_a_store(bucket, capsys):
  usual, _ = succeeds(capsys, "inspect", HEAD)

  other, _ = succeeds(capsys, "inspect", HEAD.replace("s3://", "s3a://"))

  assert other == usual


def test_predict_takes_what_other_programs_call_a_file(
  bucket, eval_cache, tmp_path, capsys
):
  url = f"file://{pathlib.Path(eval_cache.path).absolute()}"

  succeeds(capsys, "predict", HEAD, url, "--out", tmp_path / "table.csv")

  assert (tmp_path / "table.csv").exists()


def test_extract_writes_to_what_other_programs_call_a_store(bucket, capsys):
  words = f"extract digits --split test --out s3a://{object_server.BUCKET}/c"

  succeeds(capsys, *words.split())

  assert "c/cache_info.json" in bucket


def test_export_writes_the_files_of_a_disk_into_a_bucket_once(
  bucket, trained, tmp_path, capsys
):
  words = ["export", HEAD, "--ledger", trained / "ledger", "--to"]
  succeeds(capsys, *words, tmp_path / "model")

  succeeds(capsys, *words, f"{BUCKET}/model")

  names = [path.name for path in (tmp_path / "model").iterdir()]
  assert sorted(names_in(bucket, "model")) == sorted(names)
  for name in names:
    assert bucket[f"model/{name}"] == (tmp_path / "model" / name).read_bytes()
  before = dict(bucket)
  line = fails(capsys, *words, f"{BUCKET}/model")
  assert f"{BUCKET}/model already exists" in line
  assert bucket == before


def test_export_that_a_bucket_refuses_says_so_in_one_line(
  store_with_head, trained, capsys
):
  store_with_head.fault = lambda kind: 403 if kind == "PUT" else None
  words = ["export", HEAD, "--ledger", trained / "ledger", "--to"]

  line = fails(capsys, *words, f"{BUCKET}/model")

  assert "lack the permission s3:PutObject" in line
