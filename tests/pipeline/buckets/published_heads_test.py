"""What is NOT PRIVATE stays on disks, and a head is judged as it was read."""

import json

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import api
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads import head_folder
from oneshot_dp.pipeline.heads.model_card import render_card
from tests.pipeline.buckets.objects import BUCKET, HEAD
from tests.pipeline.command_line import fails, succeeds

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow


def train_on_two_classes(source):
  return api.train_head(
    np.repeat(np.eye(2), 500, axis=0),
    np.arange(1000) // 500,
    num_classes=2,
    epsilon=2.0,
    delta=1e-6,
    head="lamb",
    source=source,
  )


def test_save_head_writes_into_a_bucket_what_load_head_reads(bucket):
  head = train_on_two_classes(NoiseSource())

  head_folder.save_head(head, f"{BUCKET}/saved", dataset="pets")

  again = head_folder.load_head(f"{BUCKET}/saved")
  np.testing.assert_array_equal(again.head.kernel, head.head.kernel)


def test_save_head_that_is_not_private_writes_nothing_into_a_bucket(bucket):
  before = dict(bucket)
  head = train_on_two_classes(NoiseSource(1))

  with pytest.raises(InputError, match="NOT PRIVATE is written to a disk only"):
    head_folder.save_head(head, f"{BUCKET}/seeded", dataset="pets")

  assert bucket == before


@pytest.fixture
def forged(train_cache, trained, tmp_path) -> dict[str, bytes]:
  """A head that another ledger paid for, as objects; it names our charge."""
  words = ["--cache", train_cache.path, "--epsilon", "8", "--delta", "1e-5"]
  words += ["--ledger", tmp_path / "elsewhere", "--out", tmp_path / "forged"]
  assert main(["train", *map(str, words)]) == 0
  objects = {}
  for path in (tmp_path / "forged").iterdir():
    objects[f"heads/2/{path.name}"] = path.read_bytes()
  receipt = json.loads(objects["heads/2/receipt.json"])
  genuine = json.loads((trained / "head" / "receipt.json").read_text())
  receipt["stated"]["charge"] = genuine["stated"]["charge"]
  text = json.dumps(receipt, indent=2) + "\n"
  objects["heads/2/receipt.json"] = text.encode()
  objects["heads/2/README.md"] = render_card(receipt).encode()
  return objects


@pytest.fixture
def exchanged(store_with_head, forged):
  """The store gives each forged file once, and the genuine one after that."""
  genuine = dict(store_with_head.objects)
  store_with_head.objects.update(forged)
  reads = []

  def exchange(kind):
    if kind == "GET":
      reads.append(kind)
      if len(reads) > len(forged):
        store_with_head.objects.update(genuine)

  store_with_head.fault = exchange


def test_export_judges_the_head_that_it_read(
  exchanged, trained, tmp_path, capsys
):
  out = tmp_path / "model"

  main(["export", HEAD, "--ledger", str(trained / "ledger"), "--to", str(out)])

  assert "NOT VERIFIED" in capsys.readouterr().out
  assert "NOT VERIFIED" in (out / "README.md").read_text()


def test_from_judges_the_head_that_it_goes_on_from(
  exchanged, trained, train_cache, tmp_path, capsys
):
  words = ["--cache", train_cache.path, "--epsilon", "9", "--delta", "1e-5"]
  words += ["--from", HEAD, "--ledger", trained / "ledger"]

  said = fails(capsys, "train", *words, "--out", tmp_path / "more")

  assert "NOT VERIFIED" in said


def test_seeded_scores_of_private_labels_stay_on_disks(
  store_with_head, trained, eval_cache, tmp_path, capsys
):
  words = ["--cache", eval_cache.path, "--private-eval", "1", "--delta", "1e-5"]
  words += ["--noise-seed", "1", "--ledger", tmp_path / "ledger"]
  out = f"{BUCKET}/scores.json"

  said = fails(capsys, "evaluate", HEAD, *words, "--out", out)

  assert "NOT PRIVATE" in said
  assert "scores.json" not in store_with_head.objects


def test_report_of_a_seeded_head_stays_on_disks(
  store_with_head, train_cache, tmp_path, capsys
):
  words = ["--cache", train_cache.path, "--epsilon", "2", "--delta", "1e-5"]
  words += ["--noise-seed", "1", "--ledger", tmp_path / "ledger"]
  succeeds(capsys, "train", *words, "--out", tmp_path / "seeded")
  for path in (tmp_path / "seeded").iterdir():
    store_with_head.objects[f"seeded/{path.name}"] = path.read_bytes()

  said = fails(capsys, "report", f"{BUCKET}/seeded")

  assert "NOT PRIVATE" in said
  assert "seeded/report.html" not in store_with_head.objects
