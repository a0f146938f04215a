import json
import os

import numpy as np
from PIL import Image

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads.head_folder import write_head
from tests.pipeline.command_line import succeeds
from tests.pipeline.report.page_test import write_run
from tests.pipeline.sample_heads import sample_info, trained_head
from tests.sample_caches import write_clusters


def looked_at(capsys, *words):
  """Exit status, standard output, standard error."""
  status = main(["inspect", *map(str, words)])
  said = capsys.readouterr()
  assert "Traceback" not in said.err
  assert "\x1b" not in said.out + said.err
  return status, said.out, said.err


def facts_of(capsys, *words):
  status, out, _ = looked_at(capsys, *words, "--json")
  (line,) = out.splitlines()
  return status, json.loads(line)


def photos(folder):
  for place, name in enumerate(("cat", "dog")):
    (folder / name).mkdir(parents=True)
    for i in range(3):
      pixels = np.full((8, 9 + i, 3), 40 * place + i, np.uint8)
      Image.fromarray(pixels).save(folder / name / f"{i}.png")
  return folder


def test_sound_photographs(tmp_path, capsys):
  folder = photos(tmp_path / "photos")
  os.mkfifo(tmp_path / "fifo")
  (tmp_path / "empty").mkdir()
  for name in "nothing", "fifo", "empty":
    status, _, err = looked_at(capsys, tmp_path / name)
    assert status in (1, 2)
    assert err.splitlines()[-1].startswith("oneshot-dp: error:")
  status, out, _ = looked_at(capsys, folder)
  assert status == 0
  assert "PRIVATE" in out
  for words in ("cat", "dog", "6", "9 x 8", "11 x 8"):
    assert words in out
  status, facts = facts_of(capsys, folder)
  assert status == 0
  assert facts["kind"] == "images"
  assert facts["classes"] == {"all": {"cat": 3, "dog": 3}}
  assert facts["num_images"] == 6
  assert facts["faults"] == []
  status, facts = facts_of(capsys, folder, "--units", "/(?P<copy>\\d)")
  assert (status, facts["owners"]["all"]["number"]) == (0, 3)


def test_all_that_is_wrong_with_photographs_is_named(tmp_path, capsys):
  folder = photos(tmp_path / "photos")
  (folder / "cat" / "broken1.png").write_bytes(b"none")
  (folder / "dog" / "broken2.jpg").write_bytes(b"")
  (folder / "stray.png").write_bytes((folder / "cat" / "0.png").read_bytes())
  (folder / "notes.txt").write_text("hello")
  hostile = folder / "dog" / "a\x1b[31m\nb.png"
  hostile.write_bytes((folder / "dog" / "1.png").read_bytes())
  status, out, err = looked_at(capsys, folder)
  assert status == 1
  assert "oneshot-dp: error:" in err.splitlines()[-1]
  # A file's name forges no line: what follows its newline begins none.
  assert not any(line.startswith("b.png") for line in (out + err).splitlines())
  status, facts = facts_of(capsys, folder)
  assert status == 1
  for name in ("broken1.png", "broken2.jpg", "stray.png"):
    assert name in " ".join(facts["faults"])
    assert name in out
  assert "notes.txt" in " ".join(facts["passed_over"])
  assert "dog/1.png" in json.dumps(facts["duplicates"])


def test_a_cache_and_a_damaged_one(tmp_path, capsys):
  cache = write_clusters(tmp_path / "cache")
  status, out, _ = looked_at(capsys, cache.path)
  assert status == 0
  for words in ("clusters", "180", "train", cache.info.fingerprint):
    assert words in out
  assert looked_at(capsys, cache.path, "--units", "patient")[0] == 2
  status, facts = facts_of(capsys, cache.path)
  assert (status, facts["kind"]) == (0, "cache")
  assert facts["metadata"]["dataset"] == "clusters"
  shard = next((tmp_path / "cache").glob("*array_record*"))
  data = bytearray(shard.read_bytes())
  data[len(data) // 2] ^= 1
  shard.write_bytes(data)
  status, out, err = looked_at(capsys, cache.path)
  assert status == 1
  assert shard.name in err
  os.remove(shard)
  status, _, err = looked_at(capsys, cache.path)
  assert status == 1
  assert shard.name in err


def test_a_head(tmp_path, capsys):
  write_head(tmp_path / "head", trained_head(2.0), sample_info())
  status, out, _ = looked_at(capsys, tmp_path / "head")
  assert status == 0
  for words in ("epsilon 2 at delta 1e-05 per example", "pets", "cat, dog"):
    assert words in out
  status, facts = facts_of(capsys, tmp_path / "head")
  assert (status, facts["kind"]) == (0, "head")
  assert facts["receipt"]["stated"]["dataset"] == "pets"
  file = tmp_path / "head" / "head.safetensors"
  file.write_bytes(file.read_bytes()[:-1])
  status, out, err = looked_at(capsys, tmp_path / "head")
  assert (status, out) == (1, f"a head  {tmp_path / 'head'}\n")
  assert "head.safetensors" in err.splitlines()[0]


def test_a_run(tmp_path, capsys):
  write_run(tmp_path / "run")
  status, out, _ = looked_at(capsys, tmp_path / "run")
  assert status == 0
  assert "NOT PRIVATE" in out
  assert "85.09 ± 0.07" in out
  assert " \n" not in out
  status, facts = facts_of(capsys, tmp_path / "run")
  assert (status, facts["kind"]) == (0, "run")
  assert len(facts["heads"]) == 7
  assert facts["heads"][-1]["epsilon"] == "inf"


def test_a_ledger_without_what_it_keeps_of_rows(
  tmp_path, capsys, train_cache, ledger_file
):
  succeeds(
    capsys,
    *("train", "--cache", train_cache.path, "--epsilon", 1, "--delta", 1e-3),
    *("--head", "lamb", "--out", tmp_path / "head"),
  )
  status, out, _ = looked_at(capsys, ledger_file)
  assert status == 0
  assert "clusters" in out
  status, facts = facts_of(capsys, ledger_file)
  assert (status, facts["kind"]) == (0, "ledger")
  (entry,) = facts["entries"]
  assert entry["dataset"] == "clusters"
  assert "asked" not in entry
  ledger_file.write_bytes(ledger_file.read_bytes()[:5000])
  status, _, err = looked_at(capsys, ledger_file)
  assert status == 1
  assert "damaged" in err
