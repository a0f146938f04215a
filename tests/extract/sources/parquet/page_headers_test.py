"""Pages of Parquet columns are bounded by their own headers."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.parquet import image_cells, page_headers
from oneshot_dp.extract.sources.parquet.page_headers import checked_pages
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import open_dataset

MIB = 1 << 20


def pages_of(content: io.BytesIO, column: int = 0) -> list:
  chunk = pq.ParquetFile(content).metadata.row_group(0).column(column)
  return list(checked_pages(content, "x.parquet", "x", chunk))


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("has_dictionary", [False, True])
def test_pages_have_the_values_and_bytes_that_the_footer_states(
  codec, version, has_dictionary
):
  words = [f"word {i % 700}" if i % 9 else None for i in range(20_000)]
  content = io.BytesIO()
  pq.write_table(
    pa.table({"x": words}),
    content,
    compression=codec,
    data_page_version=version,
    data_page_size=10_000,
    use_dictionary=has_dictionary,
  )

  pages = pages_of(content)

  chunk = pq.ParquetFile(content).metadata.row_group(0).column(0)
  data = [page for page in pages if not page.is_dictionary]
  assert sum(page.num_values for page in data) == chunk.num_values == 20_000
  assert len(pages) - len(data) == has_dictionary
  # The footer counts the headers as well, of some tens of bytes.
  headers = chunk.total_uncompressed_size - sum(p.unfolded_bytes for p in pages)
  assert 10 * len(pages) < headers < 100 * len(pages)
  headers = chunk.total_compressed_size - sum(p.stored_bytes for p in pages)
  assert 10 * len(pages) < headers < 100 * len(pages)


def test_damaged_headers_of_pages_end_in_one_error():
  content = io.BytesIO()
  pq.write_table(pa.table({"x": ["a", "b"]}), content)
  chunk = pq.ParquetFile(content).metadata.row_group(0).column(0)
  draw = np.random.default_rng(0)
  for _ in range(500):
    data = bytearray(content.getvalue())
    for place in draw.integers(4, 60, 3):
      data[place] = draw.integers(256)
    try:
      list(checked_pages(io.BytesIO(data), "x.parquet", "x", chunk))
    except ValueError as error:  # of which InputError is one
      assert isinstance(error, InputError) or "page" in str(error)  # noqa: PT017


@pytest.fixture
def readings(monkeypatch):
  """One entry for each time that Arrow is asked for rows."""
  readings: list[int] = []
  original = pq.ParquetFile.iter_batches

  def counted(file, *args, **options):
    readings.append(1)
    return original(file, *args, **options)

  monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
  image_cells._readers.clear()
  return readings


def write_large_cell(path, column: str, num_bytes: int) -> None:
  """A cell of zeros, which takes some kilobytes in the file."""
  cells = pa.array([bytes(num_bytes), b"x"], pa.binary())
  columns = {"image": [b"x", b"y"], "label": [0, 0]}
  columns[column] = cells if column == "image" else cells.cast(pa.string())
  pq.write_table(
    pa.table(columns), path, compression="zstd", use_dictionary=False
  )


@pytest.mark.parametrize("column", ["image", "label"])
def test_a_page_that_unfolds_to_too_much_is_refused_unread(
  tmp_path, monkeypatch, readings, column
):
  monkeypatch.setattr(page_headers, "MAX_COLUMN_BYTES", MIB)
  write_large_cell(tmp_path / "x.parquet", column, 2 * MIB)

  with refused(f"a page of column '{column}' unfolds from .* more than 1,048"):
    _ = open_dataset(tmp_path / "x.parquet", num_classes=1)[0]

  assert len(readings) == (column == "image")  # of the labels


@pytest.mark.slow
def test_a_page_of_300_mb_in_some_kilobytes_is_refused_unread(tmp_path):
  path = tmp_path / "x.parquet"
  write_large_cell(path, "image", 300 * MIB)
  assert path.stat().st_size < 40_000

  with refused("a page of column 'image' unfolds from .* more than 268,435,45"):
    _ = open_dataset(path, num_classes=1)[0]


def test_rows_that_are_passed_over_are_kept_for_another_thread(
  tmp_path, monkeypatch, readings
):
  monkeypatch.setattr(image_cells, "_BATCH_BYTES", MIB)  # of some rows
  cells = [bytes([i]) * (MIB // 32) for i in range(100)]
  path = tmp_path / "x.parquet"
  pq.write_table(pa.table({"image": cells, "label": [0] * 100}), path)
  file = listed_files.file_at(str(path))

  for row in (99, 0, 50, 98):
    assert image_cells.read_cell(file, "image", 0, row) == cells[row]

  assert len(readings) == 1


def test_a_large_dictionary_is_not_kept_with_each_batch(tmp_path, monkeypatch):
  """As pandas writes photographs: the first thousand are a dictionary."""
  monkeypatch.setattr(image_cells, "_BATCH_BYTES", MIB)
  monkeypatch.setattr(image_cells, "_MAX_DICTIONARY_BYTES", MIB // 32)
  cells = [bytes([i]) * (MIB // 32) for i in range(60)]
  path = tmp_path / "x.parquet"
  pq.write_table(
    pa.table({"image": cells, "label": [0] * 60}), path, compression="zstd"
  )
  file = listed_files.file_at(str(path))
  image_cells._readers.clear()

  for row in (0, 59):
    assert image_cells.read_cell(file, "image", 0, row) == cells[row]

  (reader,) = image_cells._readers._readers.values()
  assert len(reader.kept) > 1
  assert reader.kept_bytes < 61 * MIB // 32
