"""`--unlabeled`: public rows that a head learns from as well."""

import json
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.entries import spent
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_heads import mu2_of
from tests.sample_caches import clusters, write_clusters, write_rows


@pytest.fixture
def public_cache(tmp_path):
  """1,200 public rows like the private ones, of one class by their labels."""
  embeddings, _ = clusters((300,) * 4, seed=7)
  labels = np.zeros(len(embeddings), int)
  return write_rows(
    tmp_path / "public", embeddings, labels, num_classes=1, dataset="public"
  )


def train_words(place, cache, line=""):
  words = place(f"TRAIN --epsilon 2 --out head {line}")
  return [*words, "--unlabeled", cache.path]


@pytest.mark.slow
def test_train_with_unlabeled_rows_states_them_in_receipt_and_card(
  capsys, place, public_cache
):
  succeeds(capsys, *train_words(place, public_cache))
  stated = read_head(Path("head")).stated
  assert len(stated["options"]["unlabeled_sha256"]) == 64
  assert stated["options"]["self_trained"] in (True, False)
  names = [release["name"] for release in stated["releases"]]
  assert names.count("self-training gain") == 1
  assert (
    "Public unlabeled rows do not depend" in Path("head/README.md").read_text()
  )


@pytest.mark.slow
def test_train_with_unlabeled_rows_costs_its_epsilon_and_verifies(
  capsys, place, ledger, public_cache
):
  succeeds(capsys, *train_words(place, public_cache))
  off = spent(ledger.entries("clusters")) - mu2_of(2.0)
  assert abs(off) <= mu2_of(2.0) / 10**9
  assert verify_head(Path("head"), ledger).vouched


@pytest.mark.slow
def test_receipt_that_leaves_out_the_release_that_chose_is_refused(
  capsys, place, public_cache
):
  succeeds(capsys, *train_words(place, public_cache))
  path = Path("head/receipt.json")
  receipt = json.loads(path.read_text())
  receipt["stated"]["releases"] = [
    release
    for release in receipt["stated"]["releases"]
    if release["name"] != "self-training gain"
  ]
  path.write_text(json.dumps(receipt))
  with pytest.raises(InputError, match="damaged"):
    read_head(Path("head"))


@pytest.mark.slow
def test_sweep_with_unlabeled_rows_writes_heads_that_used_them(
  capsys, place, public_cache
):
  words = place("SWEEP --epsilons 1 4 --out results")
  succeeds(capsys, *words, "--unlabeled", public_cache.path)
  for folder in Path("results/heads").iterdir():
    assert "self_trained" in read_head(folder).stated["options"]


@pytest.mark.slow
def test_train_from_a_head_with_unlabeled_rows_needs_them_again(
  capsys, place, public_cache
):
  succeeds(capsys, *train_words(place, public_cache))
  words = place("TRAIN --epsilon 8 --from head --out larger")
  assert "give the same ones again (--unlabeled)" in fails(capsys, *words)
  succeeds(capsys, *words, "--unlabeled", public_cache.path)


def test_train_with_private_rows_as_unlabeled_ones_is_refused(
  capsys, place, train_cache, ledger
):
  line = fails(capsys, *train_words(place, train_cache))
  assert "the public rows overlap the private rows" in line
  assert not ledger.entries("clusters")


@pytest.mark.slow
def test_train_with_private_rows_of_the_ledger_as_unlabeled_is_refused(
  capsys, place, tmp_path
):
  other = write_clusters(tmp_path / "other", seed=5, dataset="others")
  succeeds(
    capsys, *place("TRAIN --epsilon 1 --out first"), "--cache", other.path
  )
  line = fails(capsys, *train_words(place, other))
  assert "are among the private rows of 'others'" in line


def test_train_with_unlabeled_rows_of_another_backbone_is_refused(
  capsys, place, tmp_path
):
  other = write_clusters(
    tmp_path / "other", seed=5, backbone={"name": "another"}
  )
  line = fails(capsys, *train_words(place, other))
  assert "come from different backbones" in line


def test_one_step_with_unlabeled_rows_is_refused(capsys, place, public_cache):
  line = fails(capsys, *train_words(place, public_cache, "--head lamb"))
  assert "unlabeled is for head 'auto', not for 'lamb'" in line
