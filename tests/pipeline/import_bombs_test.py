"""Tables of embeddings that unfold to more than memory."""

import resource
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.import_table import import_table


def shared_word(n):
  """n rows that refer to one string of 64 MB."""
  word = pa.array(["x".ljust(1 << 26, "x")])
  return pa.DictionaryArray.from_arrays(pa.array([0] * n), word)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["label", "who"])
def test_rows_that_share_an_endless_word_are_refused_at_once(tmp_path, name):
  n = 1000  # 64 GB, if each had a copy
  columns = {"embedding": [[0.5, 1.0]] * n, "label": ["x", "y"] * (n // 2)}
  table = pa.table({**columns, name: shared_word(n)})
  pq.write_table(
    table,
    tmp_path / "x.parquet",
    compression="zstd",
    dictionary_pagesize_limit=1 << 30,
    store_schema=False,
  )
  unit_name = "who" if name == "who" else None
  names = ["x", "y"]
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

  with pytest.raises(InputError, match=f"a value of '{name}' unfolds to"):
    import_table(
      tmp_path / "x.parquet",
      tmp_path / "c",
      class_names=names,
      unit_name=unit_name,
    )

  more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
  assert more * 1024 < 1.5e9


def write_endless_header(path, name):
  """An npz whose array states a header of 1.5 GB, which NumPy reads whole."""
  with zipfile.ZipFile(path, "w") as archive:
    length = struct.pack("<I", 1_500_000_000)
    archive.writestr(f"{name}.npy", b"\x93NUMPY\x02\x00" + length)


def test_an_array_of_an_endless_header_is_refused_unread(tmp_path):
  write_endless_header(tmp_path / "x.npz", "embedding")

  with pytest.raises(InputError, match="a header of 1,500,000,000 bytes"):
    import_table(tmp_path / "x.npz", tmp_path / "c", num_classes=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_vectors_far_wider_than_any_networks_are_refused_unread(tmp_path, kind):
  embedding = np.zeros((4, 1 << 22), np.float32)
  label = np.arange(4) % 2
  file = tmp_path / f"x.{kind}"
  if kind == "npz":
    np.savez_compressed(file, embedding=embedding, label=label)
  else:
    column = pa.array(list(embedding))
    pq.write_table(
      pa.table({"embedding": column, "label": label}),
      file,
      compression="zstd",
    )
  with pytest.raises(InputError, match="4,194,304 numbers, and 1,048,576 are"):
    import_table(file, tmp_path / "c", num_classes=2)


@pytest.mark.slow
def test_equal_numbers_that_unfold_to_gigabytes_are_refused_unread(tmp_path):
  column = pa.array([np.zeros(1 << 24, np.float32)] * 3)
  file = tmp_path / "x.parquet"
  table = pa.table({"embedding": column, "label": [0, 1, 0]})
  pq.write_table(table, file, compression="zstd")
  with pytest.raises(InputError, match="column 'embedding' unfolds from"):
    import_table(file, tmp_path / "c", num_classes=2)
