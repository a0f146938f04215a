"""inspect: what a path is, what is in it, and what is wrong with it."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.inspect import is_cache
from oneshot_dp.pipeline.heads.head_folder import write_head
from tests.extract import local_hub
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import encode_png, write_table
from tests.pipeline.report.sample_runs import write_run
from tests.pipeline.sample_heads import (
  make_charge_request,
  sample_info,
  trained_head,
)
from tests.sample_caches import write_clusters


class Inspected(NamedTuple):
  """What `inspect` said: for a person, and for a program."""

  status: int
  stdout: str
  stderr: str
  facts: dict[str, Any]


@pytest.fixture
def inspect(capsys):
  """Returns a function that inspects a path, with `--json` and without."""

  def run(*words):
    status = main(["inspect", *map(str, words)])
    stdout, stderr = capsys.readouterr()
    json_status = main(["inspect", *map(str, words), "--json"])
    json_stdout, json_stderr = capsys.readouterr()
    assert json_status == status
    assert "Traceback" not in stderr + json_stderr
    # No name of a file moves the cursor of a terminal.
    assert "\x1b" not in stdout + stderr + json_stdout + json_stderr
    facts = json.loads(json_stdout or "{}")
    return Inspected(status, stdout, stderr, facts)

  return run


# Images.


@pytest.fixture
def photos(tmp_path) -> Path:
  """Three cats and three dogs, of three widths."""
  folder = tmp_path / "photos"
  for shade, name in ((0, "cat"), (40, "dog")):
    (folder / name).mkdir(parents=True)
    for i in range(3):
      pixels = np.full((8, 9 + i, 3), shade + i, np.uint8)
      Image.fromarray(pixels).save(folder / name / f"{i}.png")
  return folder


def test_images_without_a_fault_are_described(photos, inspect):
  status, stdout, _, facts = inspect(photos)

  assert status == 0
  for words in ("PRIVATE", "cat", "dog", "6", "9 x 8", "11 x 8"):
    assert words in stdout
  assert facts["kind"] == "images"
  assert facts["classes"] == {"all": {"cat": 3, "dog": 3}}
  assert facts["num_images"] == 6
  assert facts["faults"] == []


def test_owners_of_images_are_counted(photos, inspect):
  status, _, _, facts = inspect(photos, "--units", "/(?P<copy>\\d)")

  assert status == 0
  assert facts["owners"]["all"]["number"] == 3


@pytest.mark.parametrize("kind", ["nothing", "fifo", "empty"])
def test_path_without_images_is_an_error(tmp_path, inspect, kind):
  if kind == "fifo":
    os.mkfifo(tmp_path / kind)
  if kind == "empty":
    (tmp_path / kind).mkdir()

  status, _, stderr, _ = inspect(tmp_path / kind)

  assert status in (1, 2)
  assert stderr.splitlines()[-1].startswith("oneshot-dp: error:")


def test_images_that_cannot_be_decoded_are_each_named_once(photos, inspect):
  broken = ("broken1.png", "broken2.jpg")
  for name in broken:
    (photos / "cat" / name).write_bytes(b"none")

  status, stdout, stderr, facts = inspect(photos)

  assert status == 1
  assert "oneshot-dp: error:" in stderr.splitlines()[-1]
  for name in broken:
    assert (stdout + stderr).count(f"{name}: ") == 1
    assert name in " ".join(facts["faults"])


def test_name_of_an_image_forges_no_line(photos, inspect):
  (photos / "cat" / "a\x1b[31m\nb.png").write_bytes(b"none")

  status, stdout, stderr, _ = inspect(photos)

  assert status == 1
  lines = (stdout + stderr).splitlines()
  assert not any(line.startswith("b.png") for line in lines)


def test_data_set_of_the_hub_is_described_by_its_address(
  tmp_path, inspect, monkeypatch
):
  path = tmp_path / "train.parquet"
  images = [encode_png(), encode_png(1)]
  write_table(path, images, ["cat", "dog"], label=[0, 1])
  files = {path.name: path.read_bytes()}
  dataset = local_hub.Dataset(
    "owner/pets", local_hub.Commit(local_hub.COMMIT, files)
  )
  address = "hf://datasets/owner/pets"

  with local_hub.serve_dataset(monkeypatch, tmp_path / "hub", dataset):
    status, _, _, facts = inspect(address)

  assert status == 0
  assert facts["classes"] == {"train": {"cat": 1, "dog": 1}}
  assert facts["location"] == address


# Caches.


@pytest.fixture
def cache(tmp_path):
  return write_clusters(tmp_path / "cache")


@pytest.fixture
def shard(cache) -> Path:
  """The first shard of `cache`."""
  return sorted(Path(cache.path).glob("*array_record*"))[0]


def test_cache_is_described(cache, inspect):
  status, stdout, _, facts = inspect(cache.path)

  assert status == 0
  assert facts["kind"] == "cache"
  assert facts["metadata"]["dataset"] == "clusters"
  for words in ("clusters", "180", "train", cache.info.fingerprint):
    assert words in stdout


def test_cache_with_a_flag_of_images_is_refused(cache, inspect):
  assert inspect(cache.path, "--units", "patient").status == 2


def test_cache_of_which_a_bit_was_changed_names_the_shard(
  cache, shard, inspect
):
  data = bytearray(shard.read_bytes())
  data[len(data) // 2] ^= 1
  shard.write_bytes(data)

  status, _, stderr, _ = inspect(cache.path)

  assert status == 1
  assert shard.name in stderr


def test_cache_of_which_a_shard_was_removed_names_it(cache, shard, inspect):
  shard.unlink()

  status, _, stderr, _ = inspect(cache.path)

  assert status == 1
  assert shard.name in stderr


# Heads and runs.


@pytest.fixture
def head(tmp_path) -> Path:
  write_head(tmp_path / "head", trained_head(2.0), sample_info())
  return tmp_path / "head"


def test_head_is_described(head, inspect):
  status, stdout, _, facts = inspect(head)

  assert status == 0
  assert facts["kind"] == "head"
  assert facts["receipt"]["stated"]["dataset"] == "pets"
  for words in ("epsilon 2 at delta 1e-05 per example", "pets", "cat, dog"):
    assert words in stdout


def test_head_that_is_cut_short_names_the_file_and_says_nothing_else(
  head, inspect
):
  file = head / "head.safetensors"
  file.write_bytes(file.read_bytes()[:-1])

  status, stdout, stderr, _ = inspect(head)

  assert (status, stdout) == (1, f"a head  {head}\n")
  assert "head.safetensors" in stderr.splitlines()[0]


def test_run_is_described_with_its_accuracies(tmp_path, inspect):
  write_run(tmp_path / "run")

  status, stdout, _, facts = inspect(tmp_path / "run")

  assert status == 0
  assert facts["kind"] == "run"
  assert len(facts["heads"]) == 7
  assert facts["heads"][-1]["epsilon"] == "inf"
  assert "85.09 ± 0.07" in stdout
  assert " \n" not in stdout


def test_run_with_a_baseline_is_said_to_be_not_private(tmp_path, inspect):
  write_run(tmp_path / "run")

  assert "NOT PRIVATE" in inspect(tmp_path / "run").stdout


# Ledgers.


@pytest.fixture
def charged_ledger(ledger) -> Path:
  """A ledger with one charge, of a run that has a secret in its identity."""
  ledger.charge([make_charge_request(1.0)], Path("/run"), {"seed": "SECRET"})
  return ledger.path


def test_ledger_lists_its_entries(charged_ledger, inspect):
  status, stdout, _, facts = inspect(charged_ledger)

  assert status == 0
  assert facts["kind"] == "ledger"
  assert "pets" in stdout
  (entry,) = facts["entries"]
  assert entry["dataset"] == "pets"


def test_ledger_shows_nothing_that_it_keeps_of_a_run(charged_ledger, inspect):
  _, stdout, _, facts = inspect(charged_ledger)

  assert "asked" not in facts["entries"][0]
  assert "SECRET" not in stdout
  assert "SECRET" not in json.dumps(facts)


def test_ledger_that_is_cut_short_is_said_to_be_damaged(
  charged_ledger, inspect
):
  charged_ledger.write_bytes(charged_ledger.read_bytes()[:5000])

  status, _, stderr, _ = inspect(charged_ledger)

  assert status == 1
  assert "damaged" in stderr


def test_a_cache_that_may_not_be_read_is_said_to_be_so(tmp_path):
  """Modes stop nobody who is root, so this is tried as another user."""
  folder = tmp_path / "c"
  folder.mkdir(mode=0o700)
  is_root = os.geteuid() == 0
  folder.chmod(0)
  if is_root:
    os.seteuid(65534)
  try:
    with refused("c cannot be read: Permission denied"):
      is_cache(str(folder))
  finally:
    if is_root:
      os.seteuid(0)
    folder.chmod(0o700)
