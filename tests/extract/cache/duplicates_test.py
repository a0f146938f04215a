"""Rows of one image in a cache are counted, and can be one privacy unit."""

import pathlib

import numpy as np
import pytest

from oneshot_dp.configs.extract_config import DISTINCT_IMAGE, FIXED_GRAPH
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.duplicates import (
  Duplicates,
  describe_duplicates,
  find_duplicates,
)
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.job.job import run_extraction
from tests.extract.cache.caches import columns
from tests.extract.job.jobs import job_of, write_folder
from tests.sample_caches import clusters, write_rows

NONE = Duplicates(0, 0, 1, 0, ())


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
  """Ten different rows, all of class 0 of two."""
  embedding, _ = clusters((5, 5))
  return embedding, np.zeros(10, np.int64)


def test_different_rows_are_no_duplicates(tmp_path, rows):
  cache = write_rows(tmp_path / "cache", *rows, num_classes=2)
  assert find_duplicates(cache) == NONE
  text = describe_duplicates(find_duplicates(cache), cache.info)
  assert text == {"exact duplicates": "none"}


def test_equal_rows_are_counted_by_rows_and_by_images(tmp_path, rows):
  embedding, label = rows
  embedding[[3, 9]] = embedding[1]
  embedding[4] = embedding[7]
  cache = write_rows(tmp_path / "cache", embedding, label, num_classes=2)
  found = find_duplicates(cache)
  assert found[:3] == (5, 2, 3)
  assert found.conflicts == ()
  text = describe_duplicates(found, cache.info)["exact duplicates"]
  assert "5 rows share" in text
  assert "--units same-image" in text


def test_rows_of_zeros_are_no_image_and_so_no_duplicates(tmp_path, rows):
  embedding, label = rows
  embedding[[0, 1]] = 0
  cache = write_rows(tmp_path / "cache", embedding, label, num_classes=2)
  assert find_duplicates(cache) == NONE._replace(zeros=2)


def test_a_cache_of_nothing_but_zeros_has_no_duplicates(tmp_path, rows):
  embedding, label = rows
  cache = write_rows(tmp_path / "cache", 0 * embedding, label, num_classes=2)

  found = find_duplicates(cache)

  assert (found.rows, found.zeros, found.conflicts) == (0, 10, ())


def test_rows_of_zeros_are_counted(tmp_path, rows):
  embedding, label = rows
  embedding[[0, 1, 5]] = 0
  cache = write_rows(tmp_path / "cache", embedding, label, num_classes=2)
  text = describe_duplicates(find_duplicates(cache), cache.info)
  assert text["rows of zeros"].startswith("3 rows are all zeros, or shorter")


def test_rows_too_short_for_norm_1_are_counted_with_zeros(tmp_path, rows):
  embedding, label = rows
  embedding[[0, 1]] = [[1e-41], [2e-41]]
  cache = write_rows(tmp_path / "cache", embedding, label, num_classes=2)
  assert find_duplicates(cache).zeros == 2


def test_one_embedding_of_all_rows_is_said(tmp_path, rows):
  embedding, label = rows
  embedding[2:] = embedding[2]
  embedding[:2] = 0
  cache = write_rows(tmp_path / "cache", embedding, label, num_classes=2)
  text = describe_duplicates(find_duplicates(cache), cache.info)
  assert text["embeddings"].startswith("all are the same")


def test_an_image_in_two_classes_many_times_is_named_by_few_ids(tmp_path, rows):
  embedding, label = rows
  embedding[:] = embedding[0]
  label[3] = 1
  cache = write_rows(tmp_path / "cache", embedding, label, num_classes=2)
  text = describe_duplicates(find_duplicates(cache), cache.info)
  assert "0 = 1 = 2 = 3 = 4 = … (10 rows)" in text["label conflicts"]


def test_one_image_in_two_classes_is_a_conflict_named_by_ids(tmp_path, rows):
  embedding, label = rows
  embedding[8] = embedding[2]
  label[8] = 1
  cache = write_rows(tmp_path / "cache", embedding, label, num_classes=2)
  found = find_duplicates(cache)
  assert found.conflicts == ((2, 8),)
  text = describe_duplicates(found, cache.info)["label conflicts"]
  assert "example ids 2 = 8" in text


def test_one_image_of_two_owners_is_told_from_two_of_one(tmp_path, rows):
  embedding, label = rows
  embedding[1] = embedding[0]
  embedding[3] = embedding[2]
  unit_id = np.array([1, 1, 2, 3, 4, 5, 6, 7, 8, 9])
  cache = write_rows(
    tmp_path / "cache", embedding, label, unit_id=unit_id, num_classes=2
  )
  found = find_duplicates(cache)
  assert (found.images, found.across_units) == (2, 1)
  text = describe_duplicates(found, cache.info)["exact duplicates"]
  assert "1 are of several users" in text


def test_one_image_of_the_same_owners_is_told_from_one_of_others(
  tmp_path, rows
):
  embedding, label = rows
  embedding[1] = embedding[0]
  embedding[3] = embedding[2]
  unit_id = np.stack([np.arange(10), np.full(10, 20)], axis=1)
  unit_id[1] = unit_id[0]
  cache = write_rows(
    tmp_path / "cache", embedding, label, unit_id=unit_id, num_classes=2
  )
  found = find_duplicates(cache)
  assert (found.images, found.across_units) == (2, 1)
  text = describe_duplicates(found, cache.info)["exact duplicates"]
  assert "the rows of 1 are not all of the same users" in text
  assert "give all copies all owners" in text


def test_equal_embeddings_of_an_import_are_one_unit(tmp_path, rows):
  embedding, label = rows
  embedding[[3, 9]] = embedding[1]
  cache = write_rows(
    tmp_path / "cache", embedding, label, num_classes=2, unit=DISTINCT_IMAGE
  )
  unit_id = columns(cache)["unit_id"]
  assert unit_id[3] == unit_id[9] == unit_id[1]
  assert len(np.unique(unit_id)) == 8
  assert unit_id.min() >= 0


def test_a_broken_image_takes_its_part_of_its_owners_weight(tmp_path):
  """Who is in which image is public, and what is in it is not."""
  paths = write_folder(tmp_path / "photos", 6, bad=(2,))
  lines = ["file,person"]
  for place, path in enumerate(paths):
    name = path.relative_to(tmp_path / "photos")
    lines += [f"{name},ann", f"{name},p{place}"]
  (tmp_path / "owners.csv").write_text("\n".join(lines))
  job = job_of(
    tmp_path / "photos",
    settings={"units": str(tmp_path / "owners.csv")},
    on_decode_error="skip",
  )

  run_extraction(job, str(tmp_path / "cache"))

  cache = open_cache(str(tmp_path / "cache"))
  found = columns(cache)
  assert cache.info.unit == "person" + FIXED_GRAPH
  assert cache.info.owners_per_row == 2
  assert found["example_id"].tolist() == [0, 1, 3, 4, 5]
  assert found["weight_divisor"].tolist() == [6] * 5
  assert found["unit_id"].shape == (5, 2)
  assert not check_cache(cache.path)


@pytest.fixture
def copies(tmp_path) -> pathlib.Path:
  """Six images, of which the second is there again as the last, an ox."""
  paths = write_folder(tmp_path / "photos", 6)
  paths[5].write_bytes(paths[1].read_bytes())
  return tmp_path / "photos"


def test_files_of_the_same_bytes_are_one_unit_of_an_extraction(
  copies, tmp_path
):
  out = str(tmp_path / "cache")
  run_extraction(job_of(copies, settings={"units": "same-image"}), out)
  cache = open_cache(out)
  unit_id = columns(cache)["unit_id"]
  assert cache.info.unit == DISTINCT_IMAGE
  assert unit_id[1] == unit_id[5]
  assert len(np.unique(unit_id)) == 5
  found = find_duplicates(cache)
  assert found == Duplicates(2, 1, 2, 0, ((1, 5),))
  text = describe_duplicates(found, cache.info)["exact duplicates"]
  assert "protected together" in text


def test_the_unit_of_an_image_does_not_depend_on_other_images(copies, tmp_path):
  config = job_of(copies, settings={"units": "same-image"})
  run_extraction(config, str(tmp_path / "all"))
  (copies / "cat" / "0000.png").unlink()
  run_extraction(config, str(tmp_path / "fewer"))
  whole = columns(open_cache(tmp_path / "all"))["unit_id"]
  fewer = columns(open_cache(tmp_path / "fewer"))["unit_id"]
  np.testing.assert_array_equal(whole[1:], fewer)


def test_parts_keep_all_copies_of_an_image_together(tmp_path, rows):
  embedding = np.repeat(rows[0], 2, axis=0)
  label = np.zeros(20, np.int64)
  write_rows(
    tmp_path / "cache", embedding, label, num_classes=2, unit=DISTINCT_IMAGE
  )
  seen = []
  for part in Part(last=50), Part(first=50):
    cache = open_cache(tmp_path / "cache", part)
    seen.append({id_ // 2 for id_ in columns(cache)["example_id"].tolist()})
  assert not seen[0] & seen[1]
  assert seen[0] | seen[1] == set(range(10))
