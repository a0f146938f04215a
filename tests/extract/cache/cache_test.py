"""Written and read: the format, whole caches, parts, damage, sizes."""

import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest

from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.read import check_cache, describe, open_cache
from oneshot_dp.extract.cache.row_values import (
  stored_norm,
  validate_and_cast_rows,
)
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
  put_shard,
)
from oneshot_dp.extract.cache.write import (
  finalize,
  start_or_resume,
  write_cache,
)
from tests.extract.cache.caches import (
  columns,
  digest,
  import_rows,
  imported,
  make_info,
  make_rows,
  part,
  run_job,
)
from tests.extract.refusals import refused


@pytest.mark.parametrize(
  ("dtype", "unit"),
  [("float16", "example"), ("float32", "patient"), ("bfloat16", "patient")],
)
def test_what_is_written_is_read(tmp_path, dtype, unit):
  backbone = {"name": "x", "preprocess": {"mean": (0.5, 0.5, 0.5)}}
  changes = {"backbone": backbone, "views": {"count": 2}, "shard_rows": 300}
  info = make_info(600, 20, embedding_dtype=dtype, unit=unit, **changes)
  rows = make_rows(info)
  cache = run_job(tmp_path / "cache", info)
  found = columns(cache)
  assert set(found) == set(info.columns())
  stored = rows["embedding"].astype(info.columns()["embedding"][0])
  rows |= {"embedding": stored, "embedding_norm": stored_norm(stored)}
  for name, column in rows.items():
    np.testing.assert_array_equal(found[name], column)
  (block,) = cache.blocks([1])
  assert {(len(c), c.ctypes.data % 64) for c in block.values()} == {(300, 0)}
  assert (cache.n, cache.num_rows, cache.info.num_shards) == (600, 600, 2)
  assert check_cache(tmp_path / "cache") == []
  assert open_cache(tmp_path / "cache") == cache
  assert dataclasses.replace(cache.info, shards=()) == info
  data = json.loads((tmp_path / "cache" / INFO_FILE).read_text())
  assert data.keys() - {"shards", "fingerprint"} == info.public().keys()
  said = describe(cache)
  assert said["examples"] == "600 of 600"
  assert said["data set"] == "pets, split train"
  files = (tmp_path / "cache").iterdir()
  assert {p.stat().st_mode & 0o777 for p in files} == {0o600}
  assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("n", "d"), [(50, 9), (1, 1), (3, 16_384)])
def test_an_import_is_bounded_by_no_block(tmp_path, n, d):
  info = make_info(n, d)
  rows = imported(make_rows(info))
  one = import_rows(tmp_path / "one", info)
  pieces = [part(rows, range(i, i + 7)) for i in range(0, n, 7)]
  write_cache(tmp_path / "other", info, pieces)
  before = digest(tmp_path / "one")
  assert before == digest(tmp_path / "other")
  assert one.info.keys == "embedding"
  stored = rows["embedding"].astype(np.float16)
  np.testing.assert_array_equal(columns(one)["embedding"], stored)
  assert check_cache(tmp_path / "one") == []
  # Again: the same one. Other rows are not taken for them.
  assert import_rows(tmp_path / "one", info) == one
  with refused("holds other rows than these"):
    import_rows(tmp_path / "one", info, label=(rows["label"] + 1) % 4)
  assert digest(tmp_path / "one") == before


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"label": np.full(50, 4)}, r"example_id 0 has a label outside \[0, 4\)"),
    ({"label": np.full(50, -1)}, "has a label outside"),
    ({"label": np.zeros(50, "M8[s]")}, "label is datetime64"),
    ({"label": np.zeros(49, int)}, r"label is int64 \[49\]"),
    ({"embedding": np.full((50, 9), 1e6)}, "overflows float16"),
    ({"embedding": np.full((50, 9), -np.inf)}, "is not finite"),
    ({"embedding": np.full((50, 9), 1e-9)}, "id 0 .* underflows float16"),
    ({"embedding": np.full((50, 9), 1e-7)}, "underflows float16"),
    ({"embedding": np.full((50, 9), 1e-300)}, "underflows float16"),
    ({"example_id": np.arange(50) % 49}, "example_id 0 comes more than once"),
    ({"embedding": np.zeros((50, 8))}, r"embedding is float64 \[50, 8\]"),
    ({"embedding": np.zeros((50, 9), int)}, "embedding is int64"),
    ({"unit_id": np.zeros(50, int)}, "got columns .*unit_id"),
    ({"example_id": np.zeros(50, np.uint64)}, "example_id is uint64"),
    ({"image_key": np.zeros((50, 2), np.uint64)}, "image_key is made of"),
  ],
)
def test_rows_that_cannot_be_leave_nothing_behind(tmp_path, changes, said):
  with refused(said) as caught:
    import_rows(tmp_path / "cache", make_info(50, 9), **changes)
  assert not (tmp_path / "cache").exists()
  assert "1000000" not in str(caught.value)


@pytest.mark.parametrize(
  ("dtype", "scale"),
  [("float16", 1e-4), ("float32", 1e-30), ("bfloat16", 1e-30)],
)
def test_small_values_that_keep_their_precision_are_stored(
  tmp_path, dtype, scale
):
  """Among values of usual size, any number of tiny ones is no underflow."""
  info = make_info(50, 9, embedding_dtype=dtype)
  embedding = scale * np.random.default_rng(0).standard_normal((50, 9))
  embedding[:, 0] = scale * 3
  embedding[7] = 0  # and zeros stay zeros
  embedding[8, 1:] = scale * 1e-9
  import_rows(tmp_path / "cache", info, embedding=embedding)
  assert check_cache(tmp_path / "cache") == []


@pytest.mark.parametrize("shard_rows", [8, 50])
def test_an_id_that_comes_twice_is_refused_in_whatever_shards(
  tmp_path, shard_rows
):
  info = make_info(50, 9, shard_rows=shard_rows)
  ids = np.arange(50)
  ids[41] = 3
  with refused("example_id 3 comes more than once"):
    import_rows(tmp_path / "cache", info, example_id=ids)
  assert not (tmp_path / "cache").exists()


def test_an_iterator_that_fails_or_ends_leaves_nothing_behind(tmp_path):
  info = make_info(50, 9)
  some = part(imported(make_rows(info)), range(20))

  def fails():
    yield some
    raise KeyError("empty")

  for pieces, kind, said in (
    (fails(), KeyError, "empty"),
    ([some], ValueError, "20 rows came, and source_num_examples is 50"),
  ):
    with pytest.raises(kind, match=said):
      write_cache(tmp_path / "cache", info, pieces)
    assert not (tmp_path / "cache").exists()
  # Nor takes away what a killed call began.
  keyed = dataclasses.replace(info, keys="embedding")
  start_or_resume(
    str(tmp_path / "cache"), CacheJob(info=keyed, extra_identity="import")
  )
  before = digest(tmp_path / "cache")
  with refused("20 rows came"):
    write_cache(tmp_path / "cache", info, [some])
  assert digest(tmp_path / "cache") == before


def test_zero_rows_in_a_shard_and_in_all(tmp_path):
  """All images of a shard were skipped; and all images of a source."""
  info, out = make_info(16), str(tmp_path / "a")
  job = CacheJob(info=info)
  rows = validate_and_cast_rows(part(make_rows(info), range(3)), info, "rows")
  none = part(rows, range(0))

  def put_all(out, *shards):
    start_or_resume(out, job)
    made = [encode_shard(some, job, i) for i, some in enumerate(shards)]
    return finalize(out, job, [put_shard(out, job, *each) for each in made])

  cache = put_all(out, none, rows)
  assert (cache.n, cache.num_rows) == (16, 3)  # those skipped count as nothing
  assert [len(b["label"]) for b in cache.blocks()] == [3]
  assert check_cache(out) == []
  with refused("every example was skipped"):
    put_all(str(tmp_path / "b"), none, none)


def test_what_is_published_is_no_function_of_rows(tmp_path):
  info = make_info()
  one, other = (run_job(tmp_path / str(i), info, seed=i) for i in (0, 1))
  assert one.info.shards != other.info.shards
  assert one.info.public() == other.info.public() == info.public()
  assert one.info.fingerprint == other.info.fingerprint == info.fingerprint
  assert one.private_digest != other.private_digest


def test_fingerprints():
  """One is of all that is public, one of what a head must fit."""
  info = make_info()
  for field in ("dataset", "split", "unit", "class_names"):
    other = {"class_names": ("a", "b", "c", "d")}.get(field, "user")
    assert make_info(**{field: other}).fingerprint != info.fingerprint
  for same, changes in (
    (True, {"views": {"count": 2}, "embedding_dtype": "float32"}),
    (False, {"d": 4}),
    (False, {"backbone": {"name": "vit_s16"}}),
  ):
    of = make_info(**changes).backbone_fingerprint
    assert (of == info.backbone_fingerprint) == same


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    ('"split": "train"', '"split": "test"', "do not fit"),
    ('"shard_rows": 8', '"shard_rows": 4', "do not fit"),
    ('"format_version": 3', '"format_version": 2', "format 2, not 3"),
    ('"dataset": "pets"', '"dataset": 7', "is damaged"),
    ("{", "[" * 10**6, "is damaged"),
    ("pets-train.array_record-00001", "../../x", "do not fit"),
  ],
)
def test_an_edited_file_is_refused(tmp_path, old, new, said):
  run_job(tmp_path, make_info())
  text = (tmp_path / INFO_FILE).read_text()
  (tmp_path / INFO_FILE).write_text(text.replace(old, new, 1))
  with refused(f"{INFO_FILE}.*{said}"):
    open_cache(tmp_path)


@pytest.mark.parametrize("unit", ["example", "patient"])
def test_every_row_is_in_one_part(tmp_path, unit):
  whole = columns(run_job(tmp_path, make_info(500, unit=unit, shard_rows=64)))
  parts = [open_cache(tmp_path, Part(a, a + 20)) for a in range(0, 100, 20)]
  found = [columns(cache) for cache in parts]
  ids = np.concatenate([f["example_id"] for f in found])
  assert sorted(ids) == sorted(whole["example_id"])
  assert [cache.n for cache in parts] == [100] * 5  # public: the mean
  assert [p.num_rows for p in parts] == [len(f["label"]) for f in found]
  assert len({cache.private_digest for cache in parts}) == 5
  assert parts[0].name == f"{tmp_path}[:20%]"
  if unit == "patient":
    units = [set(f["unit_id"].tolist()) for f in found]
    assert sum(map(len, units)) == len(set.union(*units))


def test_a_row_s_part_is_a_function_of_its_image_alone(tmp_path):
  """One image more or less moves no other; a copy goes where it is."""
  run_job(tmp_path / "one", make_info(300))
  run_job(tmp_path / "fewer", make_info(280, shard_rows=64))
  one, fewer = (
    columns(open_cache(tmp_path / name, Part(0, 50)))["image_key"].tolist()
    for name in ("one", "fewer")
  )
  known = make_rows(make_info(300))["image_key"][:280].tolist()
  assert [key for key in one if key in known] == fewer


@pytest.fixture
def cache(tmp_path):
  return run_job(tmp_path / "cache", make_info(40))


@pytest.mark.parametrize("how", ["flip", "cut", "longer", "empty", "swap"])
def test_a_damaged_shard_is_named_before_its_rows_come(cache, how):
  _, other, path, *_ = sorted(pathlib.Path(cache.path).glob("*record-*"))
  data = path.read_bytes()
  at = len(data) // 2
  damaged = {
    "flip": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
    "cut": data[:at],
    "longer": data + b"x",
    "empty": b"",
    "swap": other.read_bytes(),
  }[how]
  path.write_bytes(damaged)
  seen = []
  with refused(f"{path.name} is damaged"):
    seen.extend(len(rows["label"]) for rows in cache.blocks())
  assert sum(seen) == 16
  assert any(path.name in p for p in check_cache(cache.path))
  rng = np.random.default_rng(0)
  for at in rng.integers(0, len(data), 40 if how == "flip" else 0):
    flipped = bytearray(data)
    flipped[at] ^= 1 << rng.integers(8)
    path.write_bytes(flipped)
    with refused("is damaged"):
      list(cache.blocks([2]))


@pytest.mark.parametrize("what", ["metadata", "shard"])
def test_what_is_no_file_is_refused_at_once(cache, what):
  names = {"metadata": INFO_FILE, "shard": cache.info.shards[2].file}
  path = pathlib.Path(cache.path, names[what])
  for make in (
    lambda: None,
    lambda: os.mkfifo(path),
    lambda: path.touch() or os.truncate(path, 1 << 42),
    lambda: path.symlink_to("/dev/zero"),
  ):
    path.unlink(missing_ok=True)
    make()
    with refused(path.name):
      list(open_cache(cache.path).blocks())
    if what == "shard":
      assert any(path.name in p for p in check_cache(cache.path))


def test_no_cache(tmp_path):
  start_or_resume(str(tmp_path / "begun"), CacheJob(info=make_info()))
  for path, said in (
    (tmp_path / "none", "no such directory, or it is empty"),
    (tmp_path / "begun", "is not a finished cache"),
    ("a\0b", "is no path"),
  ):
    with refused(said):
      open_cache(path)
  assert not (tmp_path / "none").exists()
