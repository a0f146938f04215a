"""`train` and `sweep` write into a bucket what they write on a disk."""

import hashlib
import pathlib
import signal

import numpy as np
import pytest

from oneshot_dp.extract import places, storage
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.bucket_output import BucketOutput
from oneshot_dp.pipeline.ledger.entries import spent
from tests.pipeline.buckets.objects import BUCKET, names_in
from tests.pipeline.command_line import fails, start, succeeds
from tests.pipeline.sample_heads import mu2_of
from tests.sample_caches import DIM

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow


class TestTraining:
  """`train` and `sweep` into a bucket, and what reads their results there."""

  def test_train_writes_a_head_that_the_ledger_vouches_for(
    self, bucket, place, capsys, ledger
  ):
    words = place(f"TRAIN --epsilon 2 --out {BUCKET}/mine")

    said, _ = succeeds(capsys, *words)

    assert said.startswith(f"{BUCKET}/mine: auto at epsilon = 2")
    assert verify_head(places.Url(f"{BUCKET}/mine"), ledger).vouched
    assert sorted(names_in(bucket, "mine")) == [
      "README.md",
      "head.safetensors",
      "receipt.json",
      "releases.safetensors",
    ]
    before = dict(bucket)
    again, _ = succeeds(capsys, *words)
    assert again == f"{BUCKET}/mine is finished already: nothing to do\n"
    assert bucket == before
    assert len(ledger.entries()) == 1

  def test_head_in_a_bucket_goes_on_from_one_there_for_the_difference(
    self, bucket, place, capsys, ledger
  ):
    words = "TRAIN --head lamb --epsilon"
    succeeds(capsys, *place(f"{words} 1 --out {BUCKET}/one"))

    flags = f"--from {BUCKET}/one --out {BUCKET}/four"
    succeeds(capsys, *place(f"{words} 4 {flags}"))

    head = places.Url(f"{BUCKET}/four")
    assert verify_head(head, ledger).vouched
    first = read_head(places.Url(f"{BUCKET}/one"))
    assert read_head(head).stated["went_on_from"] == first.stated["charge"]
    off = spent(ledger.entries("clusters")) - mu2_of(4.0)
    assert abs(off) <= mu2_of(4.0) / 10**9

  def test_start_in_a_bucket_is_that_of_a_disk(
    self, bucket, place, capsys, tmp_path
  ):
    vectors = {f"class {i}": np.eye(DIM)[i] for i in range(4)}
    np.savez(tmp_path / "s.npz", **vectors)
    content = (tmp_path / "s.npz").read_bytes()
    bucket["starts/s.npz"] = content

    flags = f"--start {BUCKET}/starts/s.npz --out {BUCKET}/mine"
    succeeds(capsys, *place(f"TRAIN --epsilon 2 {flags}"))

    stated = read_head(places.Url(f"{BUCKET}/mine")).stated
    digest = hashlib.sha256(content).hexdigest()
    assert stated["options"]["start_sha256"] == digest

  @pytest.mark.long
  def test_sweep_writes_all_that_it_writes_on_a_disk(
    self, bucket, place, capsys, ledger
  ):
    words = "SWEEP --epsilons 1 8 --head lamb --out"
    succeeds(capsys, *place(f"{words} here"))

    succeeds(capsys, *place(f"{words} {BUCKET}/there"))

    here = pathlib.Path("here")
    files = [path for path in here.rglob("*") if path.is_file()]
    expected = sorted(str(path.relative_to(here)) for path in files)
    assert sorted(names_in(bucket, "there")) == expected
    said, _ = succeeds(capsys, "inspect", f"{BUCKET}/there")
    assert said.startswith(f"a run         {BUCKET}/there\n")
    assert "2, each with a sound receipt" in said
    head = f"{BUCKET}/there/heads/lamb-epsilon-8-draw-0"
    said, _ = succeeds(capsys, "verify", head)
    assert said.startswith("ok: these weights match")
    said, _ = succeeds(capsys, "report", f"{BUCKET}/there")
    assert said.strip() == f"{BUCKET}/there/report.html"

  @pytest.mark.long
  def test_killed_before_its_last_object_is_not_said_to_be_finished(
    self, bucket, place, capsys, ledger, monkeypatch
  ):
    words = place(f"SWEEP --epsilons 1 8 --head lamb --out {BUCKET}/s")
    put = storage.write_if_absent

    def stop_at_last(store, name, content):
      if name == "results.json":
        raise KeyboardInterrupt
      return put(store, name, content)

    with monkeypatch.context() as patch:
      patch.setattr(storage, "write_if_absent", stop_at_last)
      fails(capsys, *words, status=130)
    half = dict(bucket)
    assert "s/results.json" not in half
    said, _ = succeeds(capsys, *words)

    assert said == f"{BUCKET}/s is finished\n"
    assert half.items() <= bucket.items()
    assert "s/results.json" in bucket
    assert len(ledger.entries()) == 1

  @pytest.mark.long
  def test_process_that_is_killed_while_it_puts_is_finished_by_the_same_command(
    self, store_with_head, place, capsys, ledger
  ):
    words = place(f"TRAIN --epsilon 2 --head lamb --out {BUCKET}/mine")
    puts = []

    def kill_at_third_put(kind):
      if kind != "PUT":
        return None
      puts.append(kind)
      if len(puts) < 3:  # one tries whether it may
        return None
      process.kill()
      return "reset"

    store_with_head.fault = kill_at_third_put
    process = start(words)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert names_in(store_with_head.objects, "mine") == ["README.md"]
    card = store_with_head.objects["mine/README.md"]
    noted = ledger.heads()
    store_with_head.fault = lambda kind: None

    said, _ = succeeds(capsys, *words)

    assert said == f"{BUCKET}/mine is finished\n"
    assert store_with_head.objects["mine/README.md"] == card
    assert verify_head(places.Url(f"{BUCKET}/mine"), ledger).vouched
    assert ledger.heads() == noted
    assert len(ledger.entries()) == 1

  def test_killed_after_its_last_object_is_finished_and_leaves_nothing(
    self, bucket, place, capsys, ledger, monkeypatch
  ):
    words = place(f"TRAIN --epsilon 2 --head lamb --out {BUCKET}/mine")
    put = storage.write_if_absent

    def stop_after_last(store, name, content):
      existing = put(store, name, content)
      if name == "receipt.json":
        raise KeyboardInterrupt
      return existing

    with monkeypatch.context() as patch:
      patch.setattr(storage, "write_if_absent", stop_after_last)
      fails(capsys, *words, status=130)
    before = dict(bucket)
    said, _ = succeeds(capsys, *words)

    assert said == f"{BUCKET}/mine is finished\n"
    assert bucket == before
    assert len(ledger.entries()) == 1
    assert not list(ledger.path.parent.glob("*.unfinished"))

  @pytest.mark.parametrize("name", ["releases.safetensors", "README.md"])
  def test_kept_file_that_was_cut_short_is_not_put_into_the_bucket(
    self, bucket, place, capsys, ledger, monkeypatch, name
  ):
    words = place(f"TRAIN --epsilon 2 --head lamb --out {BUCKET}/mine")

    def stop(output):
      raise KeyboardInterrupt

    with monkeypatch.context() as patch:
      patch.setattr(BucketOutput, "publish", stop)
      fails(capsys, *words, status=130)
    (kept,) = ledger.path.parent.rglob(name)
    whole = kept.read_bytes()
    kept.write_bytes(whole[5:])

    line = fails(capsys, *words)

    assert name in line
    assert "put it back" in line
    assert not names_in(bucket, "mine")
    kept.write_bytes(whole)
    said, _ = succeeds(capsys, *words)
    assert said == f"{BUCKET}/mine is finished\n"

  @pytest.mark.parametrize(
    "words",
    ["TRAIN --epsilon 2 --noise-seed 1", "SWEEP --epsilons 2 --baseline"],
  )
  def test_what_is_not_private_stays_on_disks(
    self, bucket, place, capsys, ledger, words
  ):
    before = dict(bucket)

    line = fails(capsys, *place(f"{words} --out {BUCKET}/mine"))

    assert f"{BUCKET}/mine: what is NOT PRIVATE is written to a disk" in line
    assert bucket == before
    assert not ledger.path.exists()

  def test_head_that_no_store_takes_is_refused_before_the_charge(
    self, bucket, place, capsys, ledger, monkeypatch
  ):
    monkeypatch.setattr(
      "oneshot_dp.pipeline.runs.resources._MOST_OBJECT_BYTES", 1000
    )

    words = place(f"TRAIN --epsilon 2 --out {BUCKET}/mine")

    assert "choose a place on a disk" in fails(capsys, *words)
    assert not ledger.path.exists()

  def test_ledger_in_a_bucket_is_refused_with_the_reason(
    self, bucket, place, capsys
  ):
    words = f"TRAIN --epsilon 2 --out {BUCKET}/h --ledger {BUCKET}/ledger"

    line = fails(capsys, *place(words))

    assert "a ledger needs a file system's locks" in line

  @pytest.mark.parametrize("name", ["a/../b", "a\tb"])
  def test_output_at_a_name_that_no_store_takes_is_refused_in_one_line(
    self, bucket, train_cache, capsys, ledger, name
  ):
    words = ["train", "--cache", train_cache.path, "--epsilon", "2"]
    words += ["--delta", "1e-5", "--out", f"{BUCKET}/{name}"]

    line = fails(capsys, *words)

    assert "illegal character" in line
    assert not ledger.path.exists()

  @pytest.mark.parametrize("url", ["az://box/h", "https://example.org/h"])
  def test_output_at_an_address_of_another_kind_is_refused_by_its_name(
    self, bucket, place, capsys, ledger, url
  ):
    line = fails(capsys, *place(f"TRAIN --epsilon 2 --out {url}"))

    assert line.startswith(f"{url} is an address that is not read here")
    assert not ledger.path.exists()
