import dataclasses
import json
import resource
import stat
import time

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.cache.checked_rows import Rows, Skipped
from oneshot_dp.extract.cache.identity import BackboneIdentity
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.shard_writer import finished_shards, write_shard
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.cache.writer import (
  begin,
  claim,
  finish,
  is_complete,
)
from tests.extract.caches import (
  batches,
  digest,
  make_identity,
  make_rows,
  part,
  write_cache,
  write_rows,
  write_shards,
)
from tests.extract.processes import python
from tests.extract.refusals import refused


@pytest.mark.parametrize("unit", ["example", "user"])
def test_same_job_same_bytes_whatever_the_batches_and_the_order(tmp_path, unit):
  identity = make_identity(n=700, shard_rows=300, privacy_unit=unit)
  write_cache(tmp_path / "a", identity, batch_size=300)
  rows = make_rows(identity)
  begin(tmp_path / "b", identity)
  for i in (2, 0, 1):
    time.sleep(0.01)  # no time of day may reach the files
    indices = identity.shard_range(i)
    write_shard(tmp_path / "b", identity, i, batches(rows, indices, 7))
  finish(tmp_path / "b", identity)
  assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_files_are_the_owners_and_name_no_path(tmp_path):
  out = tmp_path / "deep" / "cache"
  write_cache(out, make_identity())
  assert stat.S_IMODE(out.stat().st_mode) == 0o700
  for file in out.iterdir():
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert str(tmp_path).encode() not in file.read_bytes()
  assert sorted(digest(out)) == [
    "cache_info.json",
    "dataset_info.json",
    "features.json",
    *(f"pets-train.array_record-0000{i}-of-00003" for i in range(3)),
    *(f"pets-train.content_keys-0000{i}-of-00003" for i in range(3)),
    "shards.json",
  ]


def test_private_files_are_the_owners_from_the_start(tmp_path):
  identity = make_identity()
  begin(tmp_path / "c", identity)
  modes = []

  def rows():
    for directory in (tmp_path / "c", tmp_path / "c" / "_incomplete"):
      modes.append(stat.S_IMODE(directory.stat().st_mode))
    (tmp,) = (tmp_path / "c" / "_incomplete").glob("*.rows")
    modes.append(stat.S_IMODE(tmp.stat().st_mode))
    yield part(make_rows(identity), range(0, 8))

  write_shard(tmp_path / "c", identity, 0, rows())
  assert modes == [0o700, 0o700, 0o600]


def test_metadata_does_not_depend_on_labels_or_embeddings(tmp_path):
  identity = make_identity()
  rows = make_rows(identity)
  other = Rows(
    embedding=rows.embedding[::-1],
    label=np.zeros_like(rows.label),
    example_id=rows.example_id,
  )
  for name, source in (("a", rows), ("b", other)):
    write_rows(tmp_path / name, identity, source)
  a, b = digest(tmp_path / "a"), digest(tmp_path / "b")
  differ = {name for name in a if a[name] != b[name]}
  # The shards do, their keys and their checksums, which never leave.
  assert differ == {n for n in a if "-of-" in n} | {"shards.json"}


def test_finished_cache_is_left_alone(tmp_path):
  identity = make_identity()
  write_cache(tmp_path / "c", identity)
  assert is_complete(tmp_path / "c", identity)
  before = {p: p.stat().st_mtime_ns for p in (tmp_path / "c").iterdir()}
  newer = dataclasses.replace(identity, libraries={"numpy": "3.0.0"})
  assert not begin(tmp_path / "c", newer)
  after = {p: p.stat().st_mtime_ns for p in (tmp_path / "c").iterdir()}
  assert before == after


@pytest.mark.parametrize(
  ("finished", "change", "message"),
  [
    (
      True,
      {"backbone": BackboneIdentity(name="vit_ti16", weights_sha256="cd34")},
      r'backbone\.weights_sha256 is "ab12" there and "cd34" now',
    ),
    (False, {"embedding_dtype": "float32"}, "embedding_dtype"),
    (False, {"shard_rows": 4}, "shard_rows"),
    (True, {"privacy_unit": "user"}, 'is "example" there and "user" now'),
    (False, {"n": 21}, "source_num_examples is 20 there and 21 now"),
    (False, {"libraries": {"numpy": "3.0.0"}}, r"libraries\.numpy"),
  ],
)
def test_what_another_job_has_is_named(tmp_path, finished, change, message):
  if finished:
    write_cache(tmp_path / "c", make_identity())
  else:
    begin(tmp_path / "c", make_identity())
  before = digest(tmp_path / "c")
  with refused(message) as caught:
    begin(tmp_path / "c", make_identity(**change))
  assert "choose another --out" in str(caught.value)
  assert digest(tmp_path / "c") == before


def test_shards_of_an_earlier_format_are_not_mixed_with_new_ones(tmp_path):
  identity = make_identity()
  begin(tmp_path, identity)
  job = tmp_path / "_incomplete" / "job.json"
  job.write_text(json.dumps(identity.to_json()))  # as format 1 wrote it
  with refused('version is "absent" there and 2 now'):
    begin(tmp_path, identity)


@pytest.mark.parametrize("split", ["train[:80%]", "train"])
def test_parts_that_were_cut_by_position_are_not_those_of_now(tmp_path, split):
  identity = make_identity(split=split)
  write_cache(tmp_path / "c", identity)
  info = tmp_path / "c" / "cache_info.json"
  info.write_text(
    json.dumps(json.loads(info.read_text()) | {"format_version": 1})
  )
  if split == "train":
    assert not begin(tmp_path / "c", identity)
  else:
    with refused("earlier version cut by position"):
      begin(tmp_path / "c", identity)


def test_a_directory_of_someone_else_is_refused(tmp_path):
  (tmp_path / "thesis.tex").write_text("x")
  with refused("not empty"):
    begin(tmp_path, make_identity())
  for place in ("thesis.tex", "thesis.tex/deep/c"):
    with refused("not a directory"):
      begin(tmp_path / place, make_identity())
  assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.tex"]


def _with(array, index, value):
  array = np.array(array)
  array[index] = value
  return array


ROWS = part(make_rows(make_identity()), range(8))
X, LABEL, ID = ROWS.embedding, ROWS.label, ROWS.example_id


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"embedding": _with(X, (5, 1), np.nan)}, "example_id 5 .* is not finite"),
    (
      {"embedding": _with(X, (5, 1), 70000)},
      "overflows float16; use .*float32",
    ),
    ({"embedding": np.full_like(X, 3e38)}, "overflows float32; scale"),
    ({"embedding": X[:, :2]}, r"takes embedding \[rows, 3\]"),
    ({"label": _with(LABEL, 6, 4)}, "example_id 6 has a label"),
    ({"label": _with(LABEL, 6, -1)}, "example_id 6 has a label"),
    ({"example_id": _with(ID, 7, 2)}, "example_id 2 comes twice"),
    ({"example_id": ID.astype(np.uint64)}, "example_id has dtype uint64"),
  ],
)
def test_bad_rows_are_refused_and_leave_nothing(tmp_path, changes, message):
  dtype = "float32" if "float32; scale" in message else "float16"
  identity = make_identity(embedding_dtype=dtype)
  begin(tmp_path, identity)
  rows = dataclasses.replace(ROWS, **changes)
  with refused(message):
    write_shard(tmp_path, identity, 0, [rows])
  assert list(digest(tmp_path)) == ["_incomplete/job.json"]


@pytest.mark.parametrize("indices", [range(0, 7), range(0, 9)])
def test_a_row_too_few_or_too_many_is_an_error(tmp_path, indices):
  identity = make_identity()
  begin(tmp_path, identity)
  rows = part(make_rows(identity), indices)
  with refused(f"{len(indices)} examples came, .* has 8", RunError):
    write_shard(tmp_path, identity, 0, [rows])
  assert list(digest(tmp_path)) == ["_incomplete/job.json"]


def test_skipped_examples_are_counted_and_named(tmp_path):
  identity = make_identity()
  rows = make_rows(identity)
  begin(tmp_path, identity)
  write_shard(tmp_path, identity, 0, [Skipped(0), part(rows, range(1, 8))])
  write_shard(tmp_path, identity, 1, [Skipped(i) for i in range(8, 16)])
  write_shard(tmp_path, identity, 2, [part(rows, range(16, 19)), Skipped(19)])
  info = finish(tmp_path, identity)
  assert info.num_examples == 10
  assert info.skipped_example_ids == (0, *range(8, 16), 19)
  ids = [i for b in open_cache(tmp_path).blocks() for i in b.example_id]
  assert ids == [*range(1, 8), 16, 17, 18]


def test_an_example_is_not_both_skipped_and_there(tmp_path):
  identity = make_identity()
  begin(tmp_path, identity)
  rows = part(make_rows(identity), range(0, 7))
  with refused("example_id 3 comes twice"):
    write_shard(tmp_path, identity, 0, [rows, Skipped(3)])


@pytest.mark.parametrize("skipped", [False, True])
def test_an_id_in_two_shards_is_refused_at_the_end(tmp_path, skipped):
  identity = make_identity(id_source="key")
  rows = make_rows(identity)
  rows = dataclasses.replace(rows, example_id=_with(rows.example_id, 19, 2))
  begin(tmp_path, identity)
  for i in range(2):
    write_shard(tmp_path, identity, i, [part(rows, identity.shard_range(i))])
  last = Skipped(2) if skipped else part(rows, range(19, 20))
  write_shard(tmp_path, identity, 2, [part(rows, range(16, 19)), last])
  said = "1 numbers in 'key' come more than once, the first is 2"
  with refused(said):
    finish(tmp_path, identity)
  assert not (tmp_path / "cache_info.json").exists()


def test_a_cache_of_nothing_is_an_error(tmp_path):
  identity = make_identity(n=2)
  begin(tmp_path, identity)
  write_shard(tmp_path, identity, 0, [Skipped(0), Skipped(1)])
  with refused("every example was skipped", RunError):
    finish(tmp_path, identity)


def test_finish_names_what_is_missing(tmp_path):
  identity = make_identity()
  begin(tmp_path, identity)
  rows = part(make_rows(identity), range(8, 16))
  write_shard(tmp_path, identity, 1, [rows])
  with refused(r"2 of 3 .*: 0, 2 .*indices 0 to 7", RunError):
    finish(tmp_path, identity)
  assert not (tmp_path / "cache_info.json").exists()


def test_attempts_with_other_bytes_are_one_shard(tmp_path):
  """The first that is settled is the shard: its rows, its keys, its record."""
  identity = make_identity(n=8)
  rows = make_rows(identity)
  other = dataclasses.replace(rows, embedding=rows.embedding + 1)
  begin(tmp_path, identity)

  def slowly():
    yield part(rows, range(0, 4))
    # Before this attempt has ended, another one has.
    nonlocal first
    first = write_shard(tmp_path, identity, 0, [other])
    yield part(rows, range(4, 8))

  first = None
  assert write_shard(tmp_path, identity, 0, slowly()) == first
  left = sorted(p.name for p in (tmp_path / "_incomplete").iterdir())
  assert left == ["job.json", "shard-00000.json"]
  finish(tmp_path, identity)
  assert verify_cache(tmp_path).ok
  (block,) = open_cache(tmp_path).blocks()
  np.testing.assert_array_equal(block.embedding, other.embedding.astype("<f2"))


@pytest.mark.parametrize("which", ["file", "keys_file"])
def test_finish_believes_no_record(tmp_path, which):
  identity = make_identity(n=8)
  begin(tmp_path, identity)
  record = write_shard(tmp_path, identity, 0, [make_rows(identity)])
  _flip(tmp_path / getattr(record, which))
  with refused("1 of 1 shards are missing", RunError):
    finish(tmp_path, identity)


def test_a_second_job_is_told_and_takes_nothing_from_the_first(tmp_path):
  identity = make_identity(n=8)
  with claim(tmp_path, identity) as unfinished:
    assert unfinished

    def rows():
      yield part(make_rows(identity), range(0, 4))
      before = digest(tmp_path)
      with refused("another job is writing there"):
        claim(tmp_path, identity).__enter__()
      assert digest(tmp_path) == before
      yield part(make_rows(identity), range(4, 8))

    write_shard(tmp_path, identity, 0, rows())
    finish(tmp_path, identity)
  with claim(tmp_path, identity) as unfinished:
    assert not unfinished


def test_finish_counts(tmp_path):
  identity = make_identity()
  begin(tmp_path, identity)
  write_shards(tmp_path, identity, make_rows(identity))
  record = tmp_path / "_incomplete" / "shard-00001.json"
  data = json.loads(record.read_text())
  data["record"]["rows"] = 7
  record.write_text(json.dumps(data))
  with refused(r"19 rows, 0 skipped .* the 20 exampl", RunError):
    finish(tmp_path, identity)


def _flip(path):
  data = bytearray(path.read_bytes())
  data[40] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize(
  "damage",
  [
    _flip,
    lambda p: p.write_bytes(p.read_bytes()[:-1]),
    lambda p: p.unlink(),
    lambda p: (p.parent / "_incomplete" / "shard-00001.json").unlink(),
    lambda p: (p.parent / "_incomplete" / "shard-00001.json").write_text("{"),
  ],
)
def test_a_damaged_shard_is_done_again(tmp_path, damage):
  identity = make_identity()
  write_cache(tmp_path / "whole", identity)
  out = tmp_path / "c"
  begin(out, identity)
  write_shards(out, identity, make_rows(identity))
  damage(out / identity.shard_name(1))
  assert sorted(finished_shards(out, identity)) == [0, 2]
  write_cache(out, identity)
  assert digest(out) == digest(tmp_path / "whole")


def test_what_breaks_in_the_source_is_not_blamed_on_the_disk(tmp_path):
  identity = make_identity()
  begin(tmp_path, identity)

  def rows():
    yield part(make_rows(identity), range(0, 4))
    raise FileNotFoundError("photo.jpg")

  with pytest.raises(FileNotFoundError):
    write_shard(tmp_path, identity, 0, rows())
  assert list(digest(tmp_path)) == ["_incomplete/job.json"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
  identity = make_identity(n=4000, d=64, shard_rows=4000)
  begin(tmp_path, identity)
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
  try:
    with refused(r"array_record-0.* cannot be written: .*File too", RunError):
      write_shard(tmp_path, identity, 0, [make_rows(identity)])
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert list(digest(tmp_path)) == ["_incomplete/job.json"]


# Kills the job before each name that it gives (its commits) and after the last,
# in the middle of a shard and in the clean-up, each in a process of its own;
# then runs it again and prints what is there.
_KILLS = """
import json, os, pathlib, shutil, signal, sys
from oneshot_dp.extract.cache import writer as cache_writer
from tests.extract import caches

def die():
  os.kill(os.getpid(), signal.SIGKILL)

def in_child(run, *args):
  pid = os.fork()
  if not pid:
    try:
      run(*args)
    finally:
      os._exit(0)
  return os.WTERMSIG(os.waitpid(pid, 0)[1])

def killed_at(out, identity, step):
  steps = iter(range(1000))
  def mortal(name_it):
    def named(a, b):
      if next(steps) == step: die()
      name_it(a, b)
      if next(steps) == step: die()
    return named
  os.link, os.replace = mortal(os.link), mortal(os.replace)
  caches.write_cache(out, identity)

def killed_in_a_shard(out, identity, _):
  cut = caches.batches
  def batches(rows, indices, size):
    for batch in cut(rows, indices, size):
      yield batch
      if indices.start: die()
  caches.batches = batches
  caches.write_cache(out, identity)

def killed_in_the_cleanup(out, identity, _):
  remove = shutil.rmtree
  def rmtree(path, *args, **kwargs):
    if pathlib.Path(path).name != "_incomplete":
      return remove(path, *args, **kwargs)
    (path / "shard-00001.json").unlink()
    die()
  shutil.rmtree = rmtree
  caches.write_cache(out, identity)

root = pathlib.Path(sys.argv[1])
identity = caches.make_identity(16)
caches.write_cache(root / "warm", identity)  # each child has what it imports
runs = [(killed_in_a_shard, 0), (killed_in_the_cleanup, 0)]
# job, 2 x (record, rows, keys), 2 x (shards, 2 x TFDS, cache_info): 15 names
runs += [(killed_at, step) for step in [*range(0, 30, 2), 29]]
for i, (run, step) in enumerate(runs):
  out = root / f"{i:02}"
  signal_ = in_child(run, out, identity, step)
  assert signal_ == signal.SIGKILL, (run, step, signal_)
  in_child(caches.write_cache, out, identity)
print(json.dumps([caches.digest(root / f"{i:02}") for i in range(len(runs))]))
"""


@pytest.mark.slow
def test_killed_anywhere_and_run_again_gives_the_same_bytes(tmp_path):
  write_cache(tmp_path / "whole", make_identity(16))
  (tmp_path / "killed").mkdir()
  # Another process on purpose: nothing may depend on its hash seeds.
  digests = json.loads(python(_KILLS, tmp_path / "killed"))
  assert len(digests) == 18
  for i, found in enumerate(digests):
    assert found == digest(tmp_path / "whole"), i
