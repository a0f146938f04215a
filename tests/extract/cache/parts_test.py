"""Parts of a cache have each row once, by the content of its image."""

import numpy as np
import pytest

from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.read import open_cache
from tests.extract.cache.caches import (
  columns,
  make_info,
  make_rows,
  run_job,
)
from tests.extract.refusals import refused


def in_fifths(path):
  """The five parts of a cache, each a fifth of it."""
  return [open_cache(path, Part(a, a + 20)) for a in range(0, 100, 20)]


@pytest.mark.parametrize("unit", ["example", "patient"])
def test_cache_parts_have_each_row_once(tmp_path, unit):
  info = make_info(500, unit=unit, shard_rows=64)
  whole = columns(run_job(tmp_path, info))

  parts = in_fifths(tmp_path)

  rows = [columns(cache) for cache in parts]
  ids = np.concatenate([found["example_id"] for found in rows])
  assert sorted(ids) == sorted(whole["example_id"])
  for cache, found in zip(parts, rows, strict=True):
    assert cache.num_rows == len(found["label"])


def test_open_cache_takes_the_words_of_the_command_line(tmp_path):
  run_job(tmp_path, make_info(40, shard_rows=64))

  assert open_cache(tmp_path, "[20%:40%]").part == Part(20, 40)


def test_open_cache_calls_its_part_as_its_argument_is_called(tmp_path):
  with refused("^rows '80%' is not a part of a cache"):
    open_cache(tmp_path, "80%")


def test_cache_parts_hold_units_whole(tmp_path):
  run_job(tmp_path, make_info(500, unit="patient", shard_rows=64))

  seen = set()
  for cache in in_fifths(tmp_path):
    units = set(columns(cache)["unit_id"].tolist())
    assert not units & seen
    seen |= units


def test_cache_part_says_a_public_number_of_rows(tmp_path):
  """How many rows a part has depends on rows; its share of all does not."""
  run_job(tmp_path, make_info(500, shard_rows=64))

  parts = in_fifths(tmp_path)

  assert [cache.n for cache in parts] == [100] * 5
  assert len({cache.private_digest for cache in parts}) == 5
  assert parts[0].name == f"{tmp_path}[:20%]"


def test_cache_part_of_a_row_depends_on_its_image_alone(tmp_path):
  """One image more or less moves no other; a copy goes where it is."""
  run_job(tmp_path / "all", make_info(300))
  run_job(tmp_path / "fewer", make_info(280, shard_rows=64))
  known = make_rows(make_info(300))["image_key"][:280].tolist()
  half = Part(0, 50)

  of_all = columns(open_cache(tmp_path / "all", half))["image_key"].tolist()
  of_fewer = columns(open_cache(tmp_path / "fewer", half))["image_key"].tolist()

  assert [key for key in of_all if key in known] == of_fewer
