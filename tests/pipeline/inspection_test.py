import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads.head_folder import write_head
from tests.extract import local_hub
from tests.extract.sources.fixtures import encode_png, write_table
from tests.pipeline.report.sample_runs import write_run
from tests.pipeline.sample_heads import (
  make_charge_request,
  sample_info,
  trained_head,
)
from tests.sample_caches import write_clusters


@pytest.fixture
def inspect(capsys):
  """Exit status, what is said, and the facts, of which these are some."""

  def inspected(*words, **some):
    found = []
    for more in (), ("--json",):
      status = main(["inspect", *map(str, words), *more])
      said = capsys.readouterr()
      assert "Traceback" not in said.err
      assert "\x1b" not in said.out + said.err
      found.append((status, said.out, said.err))
    assert [each[0] for each in found] == [status] * 2
    facts = json.loads(found[1][1] or "{}")
    assert facts | some == facts
    return *found[0], facts

  return inspected


def photos(folder):
  for place, name in enumerate(("cat", "dog")):
    (folder / name).mkdir(parents=True)
    for i in range(3):
      pixels = np.full((8, 9 + i, 3), 40 * place + i, np.uint8)
      Image.fromarray(pixels).save(folder / name / f"{i}.png")
  return folder


def test_photographs_and_all_that_is_wrong_with_them(tmp_path, inspect):
  folder = photos(tmp_path / "photos")
  os.mkfifo(tmp_path / "fifo")
  (tmp_path / "empty").mkdir()
  for name in "nothing", "fifo", "empty":
    status, _, err, _ = inspect(tmp_path / name)
    assert status in (1, 2)
    assert err.splitlines()[-1].startswith("oneshot-dp: error:")
  classes = {"all": {"cat": 3, "dog": 3}}
  known = {"kind": "images", "classes": classes, "num_images": 6, "faults": []}
  status, out, *_ = inspect(folder, **known)
  assert status == 0
  for words in "PRIVATE", "cat", "dog", "6", "9 x 8", "11 x 8":
    assert words in out
  status, *_, facts = inspect(folder, "--units", "/(?P<copy>\\d)")
  assert (status, facts["owners"]["all"]["number"]) == (0, 3)
  broken = "broken1.png", "broken2.jpg", "a\x1b[31m\nb.png"
  for name in broken:
    (folder / "cat" / name).write_bytes(b"none")
  status, out, err, facts = inspect(folder)
  assert status == 1
  assert "oneshot-dp: error:" in err.splitlines()[-1]
  assert (out + err).count(f"{broken[0]}: ") == 1
  # A file's name forges no line: what follows its newline begins none.
  assert not any(line.startswith("b.png") for line in (out + err).splitlines())
  for name in broken[:2]:
    assert name in " ".join(facts["faults"])
    assert name in out


def test_a_dataset_of_the_hub(tmp_path, inspect, monkeypatch):
  path = tmp_path / "train.parquet"
  images = [encode_png(), encode_png(1)]
  write_table(path, images, ["cat", "dog"], label=[0, 1])
  files = {path.name: path.read_bytes()}
  dataset = local_hub.Dataset(
    "owner/pets", local_hub.Commit(local_hub.COMMIT, files)
  )
  with local_hub.serve_dataset(monkeypatch, tmp_path / "hub", dataset):
    address = "hf://datasets/owner/pets"
    classes = {"train": {"cat": 1, "dog": 1}}
    status, *_ = inspect(address, classes=classes, location=address)
  assert status == 0


def test_a_cache_and_a_damaged_one(tmp_path, inspect):
  cache = write_clusters(tmp_path / "cache")
  status, out, _, facts = inspect(cache.path, kind="cache")
  assert (status, facts["metadata"]["dataset"]) == (0, "clusters")
  for words in "clusters", "180", "train", cache.info.fingerprint:
    assert words in out
  assert inspect(cache.path, "--units", "patient")[0] == 2
  shard = next((tmp_path / "cache").glob("*array_record*"))
  data = bytearray(shard.read_bytes())
  data[len(data) // 2] ^= 1
  shard.write_bytes(data)
  for spoil in (lambda: None), shard.unlink:
    spoil()
    status, _, err, _ = inspect(cache.path)
    assert status == 1
    assert shard.name in err


def test_a_head(tmp_path, inspect):
  write_head(tmp_path / "head", trained_head(2.0), sample_info())
  status, out, _, facts = inspect(tmp_path / "head", kind="head")
  assert (status, facts["receipt"]["stated"]["dataset"]) == (0, "pets")
  for words in "epsilon 2 at delta 1e-05 per example", "pets", "cat, dog":
    assert words in out
  file = tmp_path / "head" / "head.safetensors"
  file.write_bytes(file.read_bytes()[:-1])
  status, out, err, _ = inspect(tmp_path / "head")
  assert (status, out) == (1, f"a head  {tmp_path / 'head'}\n")
  assert "head.safetensors" in err.splitlines()[0]


def test_a_run(tmp_path, inspect):
  write_run(tmp_path / "run")
  status, out, _, facts = inspect(tmp_path / "run", kind="run")
  assert status == 0
  assert "NOT PRIVATE" in out
  assert "85.09 ± 0.07" in out
  assert " \n" not in out
  assert len(facts["heads"]) == 7
  assert facts["heads"][-1]["epsilon"] == "inf"


def test_a_ledger_without_what_it_keeps_of_rows(inspect, ledger):
  ledger.charge([make_charge_request(1.0)], Path("/run"), {"seed": "SECRET"})
  status, out, _, facts = inspect(ledger.path, kind="ledger")
  assert status == 0
  assert "pets" in out
  (entry,) = facts["entries"]
  assert entry["dataset"] == "pets"
  assert "asked" not in entry
  assert "SECRET" not in out
  ledger.path.write_bytes(ledger.path.read_bytes()[:5000])
  status, _, err, _ = inspect(ledger.path)
  assert status == 1
  assert "damaged" in err
