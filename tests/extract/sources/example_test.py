import pathlib

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.checked_rows import Rows, Skipped
from oneshot_dp.extract.cache.info import INFO_FILE
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.shard_writer import write_shard
from oneshot_dp.extract.cache.writer import begin, finish
from oneshot_dp.extract.sources.example import number_of
from tests.extract.caches import make_identity


@pytest.mark.parametrize(
  ("name", "number"),
  [
    ("ILSVRC2012_val_00000017.JPEG", 17),
    (b"ILSVRC2012_val_00050000.JPEG", 50000),
    ("n01440764/n01440764_10026.jpeg", 10026),
    ("img.0001", 1),
    ("17", 17),
    ("a.7.tar.png", None),
    ("clip.mp4", None),
    ("12-.png", None),
    ("", None),
    ("x_" + "9" * 18, 10**18 - 1),
    ("x_" + "9" * 19, None),
    (b"\xff\xfe.png", None),
  ],
)
def test_the_number_is_the_last_of_the_stem(name, number):
  if number is not None:
    assert number_of(name, "here") == number
    return
  with pytest.raises(InputError, match=r"^here: .* does not end in a number"):
    number_of(name, "here")


def write(out: pathlib.Path, ids: list[int], *, skipped: int | None = None):
  """Three shards of these ids, the last of which may be of a lost image."""
  n = len(ids) + (skipped is not None)
  identity = make_identity(n, id_source="file_name", shard_rows=4)
  assert begin(out, identity)
  for i in range(identity.num_shards):
    mine = np.array(ids[4 * i : 4 * i + 4])
    rows = Rows(
      embedding=np.ones((len(mine), 3), np.float32),
      label=np.zeros(len(mine), int),
      example_id=mine,
    )
    lost = skipped is not None and i == identity.num_shards - 1
    write_shard(
      out, identity, i, [rows, *([Skipped(skipped or 0)] if lost else [])]
    )
  finish(out, identity)


def test_ids_in_any_order(tmp_path):
  ids = [9, 3, 7, 1, 2, 4, 8, 6, 5, 70]
  write(tmp_path / "c", ids, skipped=11)
  cache = open_cache(tmp_path / "c")
  assert cache.info.id_source == "file_name"
  found = [i for block in cache.blocks() for i in block.example_id.tolist()]
  assert found == ids


@pytest.mark.parametrize("skipped", [None, 7])
def test_an_id_of_two_shards_makes_no_cache(tmp_path, skipped):
  ids = [9, 3, 7, 1, 2, 4, 8, 6, 5, 70 if skipped else 7]
  with pytest.raises(
    InputError, match=r"1 numbers in 'file_name' come more .* first is 7,"
  ):
    write(tmp_path / "c", ids, skipped=skipped)
  assert not (tmp_path / "c" / INFO_FILE).exists()
