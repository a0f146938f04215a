"""No row is both private and public, whatever it is called."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import DISTINCT_IMAGE
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache import write
from oneshot_dp.extract.cache.format import DTYPES
from oneshot_dp.extract.cache.keys import direction_keys
from oneshot_dp.pipeline.ledger.entries import count_shared
from oneshot_dp.pipeline.runs.cache_roles import (
  CacheRole,
  check_roles,
  describe_class_difference,
  recognized_share,
)
from tests.extract.cache.keys_test import rows as rows_of_shape
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_heads import make_charge_request
from tests.sample_caches import clusters, write_clusters, write_rows


def private(cache):
  return CacheRole(cache, "private", "--cache")


def public(cache):
  return CacheRole(cache, "public", "--eval-cache")


def write_test_rows(path, embedding, label, dtype):
  """Rows of another data set, stored in this precision."""
  return write_rows(
    path,
    embedding,
    label,
    dataset="other",
    split="test",
    embedding_dtype=dtype,
  )


def charge(ledger, cache):
  """As a run does that trains on a cache."""
  info = cache.info
  keys = private(cache).keys
  bill = make_charge_request(
    0.01, dataset=info.dataset, keys=keys, unit=info.unit
  )
  ledger.charge([bill], ledger.path.parent / "out", {})


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("by", ["a cache", "the ledger"])
@pytest.mark.parametrize("copies", [0, 2, 3, 101])
def test_duplicates(tmp_path, ledger, copies, factor, by):
  """Of 200 test rows, found by a cache of this command, or by the ledger."""
  rows = clusters()
  (embedding, label) = clusters((50,) * 4, seed=1)
  embedding[:copies] = factor * rows[0][:copies]
  label[:copies] = rows[1][:copies]
  train = write_rows(tmp_path / "train", *rows)
  test = write_rows(
    tmp_path / "test", embedding, label, dataset="other", split="test"
  )
  casts = [private(train), public(test)]
  if by == "the ledger":
    charge(ledger, train)
    del casts[0]
  if copies < 3:  # one in a hundred
    notes = check_roles(casts, ledger)
    assert len(notes) == (copies > 0)
    for note in notes:
      assert note.startswith("note: some rows of --eval-cache")
      assert "2" not in note.replace(str(tmp_path), "")  # no private number
  elif copies == 3:
    with pytest.raises(InputError, match=r"more than one in .*--allow-dup"):
      check_roles(casts, ledger)
    assert check_roles(casts, ledger, allow_duplicates=True)
  else:  # these are training rows, and no test set
    with pytest.raises(InputError, match="--private-eval") as refused:
      check_roles(casts, ledger, allow_duplicates=True)
    assert "--allow-duplicates" not in str(refused.value)


@pytest.mark.parametrize("by", ["a cache", "the ledger"])
@pytest.mark.parametrize("allow_duplicates", [False, True])
def test_few_rows_seen_in_bfloat16_stand_for_many_that_are_not(
  tmp_path, ledger, by, allow_duplicates
):
  """Of 10 copies among 200 rows two are recognized: one in a hundred."""
  rng = np.random.default_rng(0)
  embedding, others = rng.standard_normal((2, 200, 64)).astype(np.float32)
  label = rng.integers(0, 4, 200)
  train = write_rows(tmp_path / "train", embedding, label)
  others[:10] = embedding[:10]
  test = write_test_rows(tmp_path / "test", others, label, "bfloat16")
  casts = [private(train), public(test)]
  if by == "the ledger":
    charge(ledger, train)
    del casts[0]
  seen = count_shared(public(test).keys, private(train).keys)
  assert 0 < 100 * seen <= 200

  with pytest.raises(
    InputError, match="perhaps more than half of the rows, as many that"
  ):
    check_roles(casts, ledger, allow_duplicates=allow_duplicates)


def test_scaled_copies_in_float16_stand_for_more_than_are_seen(
  tmp_path, ledger
):
  """12 copies among 1,000 rows, of which 10 at most are recognized."""
  rng = np.random.default_rng(0)
  embedding, others = rng.standard_normal((2, 1000, 64)).astype(np.float32)
  label = rng.integers(0, 4, 1000)
  train = write_rows(
    tmp_path / "train", embedding, label, embedding_dtype="float16"
  )
  others[:12] = np.float32(0.3) * embedding[:12]
  test = write_test_rows(tmp_path / "test", others, label, "float16")
  seen = count_shared(public(test).keys, private(train).keys)
  assert 0 < seen <= 10

  with pytest.raises(InputError, match="perhaps more than one in a hundred"):
    check_roles([private(train), public(test)], ledger)


@pytest.mark.parametrize(
  ("dtype", "kind"),
  [
    ("float16", "outliers"),
    ("float16", "relu"),
    ("bfloat16", "outliers"),
    ("bfloat16", "relu"),
  ],
)
def test_no_fewer_scaled_copies_are_recognized_than_is_assumed(dtype, kind):
  """The shapes of embeddings of which the fewest are, 64 numbers each."""
  embedding = rows_of_shape(20_000, d=64, kind=kind)
  scaled = np.float32(0.3) * embedding
  scaled_otherwise = np.float32(0.7) * embedding

  one = direction_keys(scaled.astype(DTYPES[dtype]))
  other = direction_keys(scaled_otherwise.astype(DTYPES[dtype]))

  assert (one == other).mean() >= recognized_share(dtype, dtype)


def test_exact_copies_in_bfloat16_are_counted_as_they_are(tmp_path, ledger):
  rows, (embedding, label) = clusters(), clusters((50,) * 4, seed=1)
  embedding[:2] = rows[0][:2]
  train = write_rows(tmp_path / "train", *rows, embedding_dtype="bfloat16")
  test = write_rows(
    tmp_path / "test",
    embedding,
    label,
    dataset="other",
    split="test",
    embedding_dtype="bfloat16",
  )

  (note,) = check_roles([private(train), public(test)], ledger)

  assert "at most one in a hundred" in note


@pytest.mark.parametrize("by", ["a cache", "the ledger"])
@pytest.mark.parametrize("first", [59, 60, None, "no units"])
def test_units(tmp_path, ledger, first, by):
  """A number is somebody within a data set alone."""
  train = write_clusters(tmp_path / "train", unit_id=np.arange(180) // 3)
  fields: dict[str, Any] = {"dataset": "others"} if first is None else {}
  if first != "no units":
    fields["unit_id"] = np.arange(80) + (first or 0)
  test = write_clusters(
    tmp_path / "test", (20,) * 4, seed=1, split="test", **fields
  )
  casts = [private(train), public(test)]
  if by == "the ledger":
    charge(ledger, train)
    casts = casts[1:] if first == 59 else casts
  if first == 59:
    with pytest.raises(InputError, match=r"a user of .*--private-eval"):
      check_roles(casts, ledger, allow_duplicates=True)
  else:
    notes = check_roles(casts, ledger)
    assert len(notes) == (first in (None, "no units"))
    assert all("whether a user is in both" in note for note in notes)


def test_differences_of_class_names_in_words():
  assert describe_class_difference(["a"], ["a"]) == ""
  assert describe_class_difference(["a"], ["a", "b"]) == "1 of them and 2"
  assert describe_class_difference("abcde", "edcba").endswith("and 1 more")


def test_a_cast_shows_no_keys(train_cache):
  assert "keys" not in repr(private(train_cache))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["nan", "inf", "label"])
def test_a_cache_with_fitted_hashes_is_still_looked_at(
  capsys, tmp_path, ledger_file, train_cache, monkeypatch, fault
):
  """Before any charge: a writer would have refused such a row."""
  checked = write.validate_and_cast_rows

  def unchecked(rows, info, place):
    made = checked(rows, info, place)
    embedding = made["embedding"].copy()
    label = made["label"].copy()
    if fault == "label":
      label[7] = 4
    else:
      embedding[7, 3] = float(fault)
    return made | {"embedding": embedding, "label": label}

  whole = f"--cache {train_cache.path} --delta 1e-5 --head lamb"
  succeeds(capsys, *f"train {whole} --epsilon 1 --out {tmp_path}/h".split())
  before = ledger_file.read_bytes()
  monkeypatch.setattr(write, "validate_and_cast_rows", unchecked)
  write_clusters(tmp_path / "c", seed=1, split="test")
  for line in (
    f"train {whole} --epsilon 1 --cache {tmp_path}/c --out {tmp_path}/no",
    f"sweep {whole} --epsilons 1 --eval-cache {tmp_path}/c --out {tmp_path}/no",
    f"evaluate {tmp_path}/h --cache {tmp_path}/c",
  ):
    said = fails(capsys, *line.split())
    assert f"{tmp_path}/c: example_id=7: its " in said
  assert ledger_file.read_bytes() == before


def test_a_test_set_without_rows(ledger, tmp_path):
  cache = write_clusters(tmp_path / "t", (1, 1))
  part = dataclasses.replace(cache, part=Part(0, 1))
  with pytest.raises(InputError, match="has no rows: give another"):
    check_roles([public(part)], ledger)


def test_many_copies_of_one_private_row_are_no_few_rows(
  tmp_path, ledger, train_cache
):
  """One row in a hundred is of different rows: these are one in one."""
  embedding, label = clusters()
  copies = np.repeat(embedding[:1], 200, 0), np.repeat(label[:1], 200)
  test = write_rows(tmp_path / "copies", *copies, num_classes=4, split="test")
  with pytest.raises(
    InputError, match="more than half of the rows of --eval-cache"
  ):
    check_roles([private(train_cache), public(test)], ledger)


def test_a_few_copies_are_allowed_where_images_are_the_units(tmp_path, ledger):
  rows = clusters()
  embedding, label = clusters((50,) * 4, seed=1)
  embedding[0] = rows[0][0]
  train = write_rows(tmp_path / "train", *rows, unit=DISTINCT_IMAGE)
  test = write_rows(
    tmp_path / "test", embedding, label, split="test", unit=DISTINCT_IMAGE
  )
  (note,) = check_roles([private(train), public(test)], ledger)
  assert "at most one in a hundred" in note
  charge(ledger, train)
  assert len(check_roles([public(test)], ledger)) == 1
