"""Tables that are not imported: one line says why, and nothing is written."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.import_table import import_table
from tests.pipeline.command_line import fails
from tests.pipeline.vector_tables import D, K, N, npz, parquet, vectors

BAD_ARRAYS = {
  "structured": {"embedding": np.zeros(N, [("a", "f4")])},
  "whole numbers": {"embedding": np.zeros((N, D), "i4")},
  "no width": {"embedding": np.zeros((N, 0), "f4")},
  "other lengths": {"label": np.zeros(N - 1, int)},
  "two axes of labels": {"label": np.zeros((N, 2), int)},
  "float labels": {"label": np.zeros(N)},
  "huge labels": {"label": np.full(N, 2**64 - 1, np.uint64)},
  "labels outside": {"label": np.full(N, K)},
  "NaN": {"embedding": np.full((N, D), np.nan, "f4")},
  "too large for float32": {"embedding": np.full((N, D), 1e300)},
  "ids twice": {"example_id": np.zeros(N, int)},
  "ids of words": {"example_id": np.array(["a"] * N)},
  "Fortran's order": {"embedding": np.zeros((D, N), "f4").T},
  "class names twice": {"class_names": np.array(["a"] * K)},
  "other names": {"class_names": np.array(["a", "b"])},
  "names of numbers": {"class_names": np.arange(K)},
  "two columns of vectors": {"embeddings": np.ones((N, D))},
  "a unit without a name": {"unit_id": np.zeros(N, int)},
}

VECTOR = [1.0] * D
BAD_COLUMNS = {
  "missing": {"embedding": [VECTOR, VECTOR, None, VECTOR]},
  "holes": {"embedding": [[None, *VECTOR[1:]]] * 4},
  "words": {"embedding": [["a"] * D] * 4},
  "no labels": {"label": [0, None, 1, 1]},
}
# As many values in all as four vectors have: cut by their number alone, they
# would be rows that nobody wrote.
UNEVEN = [VECTOR[1:], [*VECTOR, 1.0], VECTOR, VECTOR]


def import_words(tmp_path, file):
  return "import", file, "--out", tmp_path / "c", "--num-classes", K


def write_four_rows(path, **changes):
  columns = {"embedding": [VECTOR] * 4, "label": [0, 1, 1, 0]} | changes
  return parquet(path, **columns)


@pytest.mark.parametrize("fault", BAD_ARRAYS)
def test_arrays_that_are_no_table_of_vectors_are_one_line(
  tmp_path, capsys, fault
):
  file = npz(tmp_path / "a.npz", **BAD_ARRAYS[fault])

  message = fails(capsys, *import_words(tmp_path, file))

  assert "not of one length" not in message
  assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("fault", BAD_COLUMNS)
def test_columns_that_are_no_table_of_vectors_are_one_line(
  tmp_path, capsys, fault
):
  file = write_four_rows(tmp_path / "a.parquet", **BAD_COLUMNS[fault])

  message = fails(capsys, *import_words(tmp_path, file))

  assert "not of one length" not in message
  assert not (tmp_path / "c").exists()


def test_vectors_of_uneven_lengths_are_called_so(tmp_path, capsys):
  file = write_four_rows(tmp_path / "a.parquet", embedding=UNEVEN)

  message = fails(capsys, *import_words(tmp_path, file))

  assert "not of one length" in message
  assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("size", [-1, D])
def test_a_row_without_a_vector_is_named(tmp_path, size):
  """By its number in the file, and not in its group of a hundred rows."""
  embedding, label = vectors()
  values = [*embedding]
  values[140] = None
  array = pa.array(values, pa.list_(pa.float32(), size))
  pq.write_table(
    pa.table({"embedding": array, "label": label}),
    tmp_path / "a.parquet",
    row_group_size=100,
  )

  with pytest.raises(InputError, match=r"a.parquet\[140\] has no embedding"):
    import_table(tmp_path / "a.parquet", tmp_path / "c", num_classes=K)

  assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["embedding", "label", "class_names"])
def test_pickles_are_never_opened(tmp_path, name):
  ran = tmp_path / "ran"

  class Trap:
    def __reduce__(self):
      return (ran.touch, ())

  file = npz(tmp_path / "a.npz", **{name: np.array([Trap()] * N, object)})

  with pytest.raises(InputError, match="Python objects"):
    import_table(file, tmp_path / "c", num_classes=K)

  assert not ran.exists()


def test_a_column_that_a_flag_names_in_vain_is_one_line(tmp_path, capsys):
  file = npz(tmp_path / "a.npz")

  message = fails(capsys, *import_words(tmp_path, file), "--label", "species")

  assert "has no column species" in message
  assert not (tmp_path / "c").exists()


def test_two_kinds_of_units_are_refused(tmp_path, capsys):
  file = npz(tmp_path / "a.npz", user=np.arange(N) // 2)

  message = fails(
    capsys,
    *import_words(tmp_path, file),
    *("--unit-name", "user", "--units", "same-image"),
  )

  assert "give one of them" in message
