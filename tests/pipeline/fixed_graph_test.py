"""Pictures of several people, from the cache to the receipt."""

import json
import pathlib

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import FIXED_GRAPH, NO_OWNER
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.linear_dp.distributed.hosts import Hosts
from oneshot_dp.pipeline.audit import bounds
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.cache_roles import data_of
from tests.pipeline.command_line import fails, succeeds
from tests.sample_caches import write_clusters

UNIT = "person" + FIXED_GRAPH


def write_album(
  path: pathlib.Path,
  *,
  first_person: int = 0,
  guest: int | None = None,
  seed: int = 0,
) -> pathlib.Path:
  """180 pictures of one or two of 90 people; a guest may be in the first."""
  owners = np.full((180, 2), NO_OWNER)
  owners[:, 0] = first_person + np.arange(180) // 2
  owners[::3, 1] = first_person + (np.arange(0, 180, 3) // 2 + 7) % 90
  if guest is not None:
    owners[0, 1] = guest
  write_clusters(
    path, dataset="album", unit_id=owners, unit="person", seed=seed
  )
  return path


@pytest.fixture
def album(tmp_path) -> pathlib.Path:
  return write_album(tmp_path / "album")


PAID = ("--epsilon", 8, "--delta", 1e-5)


def test_a_receipt_says_that_who_is_in_which_image_is_public(
  capsys, tmp_path, album, ledger_file
):
  out = tmp_path / "head"
  succeeds(
    capsys, "train", "--cache", album, *PAID, "--head", "lamb", "--out", out
  )

  succeeds(capsys, "verify", out)
  stated = read_head(out).stated
  assert stated["privacy_unit"] == UNIT
  assert UNIT in (out / "README.md").read_text()
  (charge,) = Ledger(ledger_file).entries("album")
  assert charge.unit == UNIT
  for words in (["inspect", out], ["inspect", album]):
    assert UNIT in succeeds(capsys, *words)[0]
  assert UNIT in "".join(succeeds(capsys, "budget", "--cache", album))


def test_rows_of_shared_owners_are_scored_by_noisy_counts(
  capsys, tmp_path, album
):
  out = tmp_path / "head"
  succeeds(
    capsys, "train", "--cache", album, *PAID, "--head", "lamb", "--out", out
  )
  words = ["evaluate", out, "--cache", album, "--private-eval", 8]
  said, _ = succeeds(capsys, *words, "--delta", 1e-5, "--json")
  found = json.loads(said)
  assert found["privacy_unit"] == UNIT
  assert found["top1"] > 0.8


def test_a_test_set_that_shares_an_owner_is_refused(capsys, tmp_path, album):
  """By the second owner of one picture as well."""
  other = write_album(tmp_path / "other", first_person=100, guest=5, seed=3)
  words = ["sweep", "--cache", album, "--eval-cache", other, "--head", "lamb"]
  words += ["--epsilons", 8, "--delta", 1e-5, "--out", tmp_path / "runs"]
  line = fails(capsys, *words)
  assert f"a {UNIT} of --eval-cache" in line


def test_other_part_of_an_album_is_refused_by_the_receipt_alone(
  capsys, tmp_path, album
):
  """An image's bytes choose its part, so people are in both."""
  out = tmp_path / "head"
  words = ["train", "--cache", album, *PAID, "--head", "lamb", "--out", out]
  succeeds(capsys, *words, "--rows", "[:80%]", "--ledger", tmp_path / "ledger")

  said = fails(capsys, "evaluate", out, "--cache", album, "--rows", "[80%:]")

  assert "was trained on rows of" in said


def test_a_test_set_of_one_owner_a_picture_is_compared_with_an_album(
  capsys, tmp_path, album
):
  plain = tmp_path / "plain"
  write_clusters(
    plain,
    seed=3,
    dataset="album",
    unit_id=np.arange(180) // 2,
    unit="person",
  )
  words = ["sweep", "--cache", album, "--eval-cache", plain, "--head", "lamb"]
  words += ["--epsilons", 8, "--delta", 1e-5, "--out", tmp_path / "runs"]

  line = fails(capsys, *words)

  assert "of --eval-cache" in line


def test_charges_of_two_relations_do_not_add_up(capsys, tmp_path, album):
  write_clusters(
    tmp_path / "plain",
    dataset="album",
    unit_id=np.arange(180) // 2,
    unit="person",
  )
  for path, ends_well in ((album, True), (tmp_path / "plain", False)):
    words = ["train", "--cache", path, *PAID, "--head", "lamb"]
    words += ["--out", tmp_path / f"head of {path.name}"]
    if ends_well:
      succeeds(capsys, *words)
    else:
      line = fails(capsys, *words)
      assert f"charged per {UNIT}, and this would be charged per person" in line


def test_hosts_have_each_row_of_an_album_once(album):
  """A row that two hosts add would count twice for each of its owners."""
  ids = []
  for index in range(2):
    data = data_of(open_cache(album), Hosts(index, 2))
    for block in data.blocks():
      ids += block["example_id"].tolist()
  assert sorted(ids) == list(range(180))


@pytest.mark.long
def test_an_audit_of_an_album_does_not_contradict_its_claim(
  capsys, monkeypatch, tmp_path, album
):
  # Audits of sound heads alarm in up to 2.5 %: in a test, in one of a million.
  monkeypatch.setattr(bounds, "ERROR", 1e-6)
  words = ["audit", "--cache", album, "--epsilon", 4, "--delta", 1e-5]
  words += ["--head", "lamb", "--canaries", 1500, "--json"]
  found = json.loads(succeeds(capsys, *words)[0])
  assert found["ok"] is True
  assert found["gaussian"] > 1
