"""Heads, tables and vectors in buckets, as on a disk."""

import hashlib
import json
import pathlib
import signal

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import places, storage
from oneshot_dp.linear_dp import api
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads import head_folder
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.heads.model_card import render_card
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.bucket_output import BucketOutput
from oneshot_dp.pipeline.ledger.entries import spent
from tests.extract import object_server
from tests.pipeline.command_line import fails, start, succeeds
from tests.pipeline.sample_heads import mu2_of
from tests.sample_caches import DIM

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
def server(trained, tmp_path, monkeypatch):
  """A store that has the head."""
  with object_server.served(monkeypatch, tmp_path) as made:
    for path in (trained / "head").iterdir():
      made.objects[f"heads/2/{path.name}"] = path.read_bytes()
    yield made


@pytest.fixture
def bucket(server):
  """The objects of the store."""
  return server.objects


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
  bucket["heads/2/README.md"] = b"and more"

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
  assert _LOST_SLASH not in line


class TestTraining:
  """`train` and `sweep` into a bucket, and what reads their results there."""

  def test_train_writes_a_head_that_the_ledger_vouches_for(
    self, bucket, place, capsys, ledger
  ):
    words = place(f"TRAIN --epsilon 2 --out {BUCKET}/mine")

    said, _ = succeeds(capsys, *words)

    assert said.startswith(f"{BUCKET}/mine: auto at epsilon = 2")
    assert verify_head(places.Url(f"{BUCKET}/mine"), ledger).vouched
    assert sorted(_names_in(bucket, "mine")) == [
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
    assert sorted(_names_in(bucket, "there")) == expected
    said, _ = succeeds(capsys, "inspect", f"{BUCKET}/there")
    assert said.startswith(f"a run         {BUCKET}/there\n")
    assert "2, each with a sound receipt" in said
    head = f"{BUCKET}/there/heads/lamb-epsilon-8-draw-0"
    said, _ = succeeds(capsys, "verify", head)
    assert said.startswith("ok: verified")
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
    self, server, place, capsys, ledger
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

    server.fault = kill_at_third_put
    process = start(words)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert _names_in(server.objects, "mine") == ["README.md"]
    card = server.objects["mine/README.md"]
    noted = ledger.heads()
    server.fault = lambda kind: None

    said, _ = succeeds(capsys, *words)

    assert said == f"{BUCKET}/mine is finished\n"
    assert server.objects["mine/README.md"] == card
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
    assert not _names_in(bucket, "mine")
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


def _names_in(bucket, folder):
  names = [name for name in bucket if name.startswith(f"{folder}/")]
  return [name.removeprefix(f"{folder}/") for name in names]


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


@pytest.mark.slow
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
  assert sorted(_names_in(bucket, "model")) == sorted(names)
  for name in names:
    assert bucket[f"model/{name}"] == (tmp_path / "model" / name).read_bytes()
  before = dict(bucket)
  line = fails(capsys, *words, f"{BUCKET}/model")
  assert f"{BUCKET}/model already exists" in line
  assert bucket == before


def test_export_that_a_bucket_refuses_says_so_in_one_line(
  server, trained, capsys
):
  server.fault = lambda kind: 403 if kind == "PUT" else None
  words = ["export", HEAD, "--ledger", trained / "ledger", "--to"]

  line = fails(capsys, *words, f"{BUCKET}/model")

  assert "lack the permission s3:PutObject" in line


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
def exchanged(server, forged):
  """The store gives each forged file once, and the genuine one after that."""
  genuine = dict(server.objects)
  server.objects.update(forged)
  reads = []

  def exchange(kind):
    if kind == "GET":
      reads.append(kind)
      if len(reads) > len(forged):
        server.objects.update(genuine)

  server.fault = exchange


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
  server, trained, eval_cache, tmp_path, capsys
):
  words = ["--cache", eval_cache.path, "--private-eval", "1", "--delta", "1e-5"]
  words += ["--noise-seed", "1", "--ledger", tmp_path / "ledger"]
  out = f"{BUCKET}/scores.json"

  said = fails(capsys, "evaluate", HEAD, *words, "--out", out)

  assert "NOT PRIVATE" in said
  assert "scores.json" not in server.objects


def test_report_of_a_seeded_head_stays_on_disks(
  server, train_cache, tmp_path, capsys
):
  words = ["--cache", train_cache.path, "--epsilon", "2", "--delta", "1e-5"]
  words += ["--noise-seed", "1", "--ledger", tmp_path / "ledger"]
  succeeds(capsys, "train", *words, "--out", tmp_path / "seeded")
  for path in (tmp_path / "seeded").iterdir():
    server.objects[f"seeded/{path.name}"] = path.read_bytes()

  said = fails(capsys, "report", f"{BUCKET}/seeded")

  assert "NOT PRIVATE" in said
  assert "seeded/report.html" not in server.objects
