"""Small files that unfold to more than memory, and headers that never end."""

import io
import resource
import struct
import tarfile
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.tar_members import read_members
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import images_of, open_dataset

GIB = 1 << 30
MOST_BYTES = int(1.5e9)


def with_size(header: tarfile.TarInfo, size: int) -> bytes:
  """A header that states this size, negative ones in base 256."""
  block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
  block[124:136] = b"\xff" + (size % 2**88).to_bytes(11, "big")
  block[148:156] = b" " * 8
  block[148:156] = b"%06o\0 " % sum(block)
  return bytes(block)


def test_a_tar_with_a_negative_member_size_is_refused_at_once(tmp_path):
  """Python's tarfile reads its header again and again, for ever."""
  header = with_size(tarfile.TarInfo("a.png"), -512)
  (tmp_path / "x.tar").write_bytes(header + bytes(10240))
  with refused("a member of -512 bytes"):
    open_dataset(tmp_path / "x.tar", num_classes=2)


# More than Python reads as a number.
TOO_MANY_DIGITS = "9".ljust(5000, "9")


@pytest.mark.parametrize("size", ["-5", "1e3", "", TOO_MANY_DIGITS])
def test_a_tar_with_an_odd_size_in_a_pax_header_is_refused(tmp_path, size):
  info = tarfile.TarInfo("a.png")
  info.pax_headers = {"size": size}
  (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
  with refused("x.tar"):
    open_dataset(tmp_path / "x.tar", num_classes=2)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_with_an_enormous_name_is_refused_unread(tmp_path, kind):
  info = tarfile.TarInfo("a")
  info.type = kind
  info.size = GIB
  with open(tmp_path / "x.tar", "wb") as file:
    file.write(info.tobuf())
    file.truncate(2 * GIB)
  with refused("a header of 1,073,741,824 bytes"):
    open_dataset(tmp_path / "x.tar", num_classes=2)


def test_long_and_pax_names_are_read_as_tarfile_writes_them(tmp_path):
  # Past the 100 bytes that a tar has for a name.
  folder = "d".zfill(90)
  names = []
  for i in range(3):
    names.append(folder + "/" + f"k{i}".zfill(91))
  for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
    with tarfile.open(tmp_path / "x.tar", "w", format=form) as tar:
      for name in names:
        for suffix, data in (("png", name.encode()), ("cls", b"1")):
          info = tarfile.TarInfo(f"{name}.{suffix}")
          info.size = len(data)
          tar.addfile(info, io.BytesIO(data))
    source = open_dataset(tmp_path / "x.tar", num_classes=2)
    assert images_of(source) == [name.encode() for name in names]


def write_sparse_tar(path, samples: int) -> None:
  """A tar of labels of 1 MiB each, which are holes and take no room."""
  with open(path, "wb") as file:
    for number in range(samples):
      file.write(tarfile.TarInfo(f"{number}.png").tobuf())
      label = tarfile.TarInfo(f"{number}.cls")
      label.size = 1 << 20
      file.write(label.tobuf())
      file.seek(1 << 20, 1)
    file.write(bytes(1024))


def test_labels_of_a_tar_that_are_holes_are_refused_at_the_first(tmp_path):
  write_sparse_tar(tmp_path / "x.tar", 20)
  with refused("the 'cls' of '0.cls' unfolds to 1,048,576 bytes, and may have"):
    open_dataset(tmp_path / "x.tar", num_classes=2)


def test_a_label_of_a_tar_that_is_a_list_is_no_label(tmp_path):
  """Millions of empty lists take fifty times the bytes that they are."""
  with tarfile.open(tmp_path / "x.tar", "w") as tar:
    for name, data in (("a.png", b"x"), ("a.json", b'{"label": [[], []]}')):
      info = tarfile.TarInfo(name)
      info.size = len(data)
      tar.addfile(info, io.BytesIO(data))
  with refused("rows whose label in 'label' is not one of the 2 classes"):
    open_dataset(tmp_path / "x.tar", num_classes=2)


@pytest.mark.slow
def test_a_pax_header_of_many_records_is_read_once(tmp_path):
  """Each record once copied what was left: 100 GB for these 1 MiB."""
  header = tarfile.TarInfo("x")
  header.type = tarfile.XHDTYPE
  records = b"5 a=\n" * 200_000
  header.size = len(records)
  padding = bytes(-len(records) % 512)
  member = tarfile.TarInfo("a.png").tobuf()
  (tmp_path / "x.tar").write_bytes(
    header.tobuf() + records + padding + member + bytes(1024)
  )
  started = time.process_time()
  with open(tmp_path / "x.tar", "rb") as file:
    members = list(read_members(file, (tmp_path / "x.tar").stat().st_size))
  assert time.process_time() - started < 4
  assert [member.name for member in members] == ["a.png"]


def write_npz_bomb(path, name, shape, dtype) -> None:
  """An npz whose array of zeros takes a thousandth on the disk."""
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    others = {
      "image": np.full((2, 1, 1, 3), 255, np.uint8),
      "label": np.zeros(2, int),
    }
    for other, values in others.items():
      if other != name:
        with archive.open(f"{other}.npy", "w") as member:
          np.lib.format.write_array(member, values)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
      header = {"descr": dtype, "fortran_order": False, "shape": shape}
      np.lib.format.write_array_header_1_0(member, header)
      size = int(np.prod(shape)) * np.dtype(dtype).itemsize
      for start in range(0, size, 1 << 24):
        member.write(bytes(min(1 << 24, size - start)))


@pytest.mark.parametrize(
  ("name", "shape", "dtype"),
  [
    ("image", (1, 40_000, 40_000, 1), "|u1"),
    ("label", (100_000_000,), "<i8"),
    ("class_names", (3,), "<U60000000"),
  ],
)
@pytest.mark.long
def test_an_npz_array_that_unfolds_to_gigabytes_is_refused_unread(
  tmp_path, name, shape, dtype
):
  write_npz_bomb(tmp_path / "x.npz", name, shape, dtype)
  with refused(f"array '{name}' unfolds to .* and may have"):
    open_dataset(tmp_path / "x.npz", num_classes=2)


def test_an_array_of_an_endless_header_is_refused_unread(tmp_path):
  with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
    length = struct.pack("<I", 1_500_000_000)
    archive.writestr("image.npy", b"\x93NUMPY\x02\x00" + length)

  with refused("a header of 1,500,000,000 bytes"):
    open_dataset(tmp_path / "x.npz", num_classes=2)


@pytest.mark.long
def test_an_npz_of_thousands_of_arrays_is_looked_through_at_once(
  tmp_path,
):
  with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
    for number in range(30_000):
      archive.writestr(f"{number}_image.npy", b"")
  started = time.monotonic()

  with refused("has no array 'image'"):
    open_dataset(tmp_path / "x.npz", num_classes=2)
  assert time.monotonic() - started < 4


def write_dictionary_bomb(path) -> None:
  """A thousand rows that refer to one cell of 64 MB: 64 GB in 2 KB."""
  cell = pa.array([bytes(1 << 26)], pa.binary())
  images = pa.DictionaryArray.from_arrays(pa.array([0] * 1000), cell)
  table = pa.table({"image": images, "label": [0] * 1000})
  pyarrow.parquet.write_table(
    table,
    path,
    compression="zstd",
    dictionary_pagesize_limit=GIB,
    store_schema=False,  # else Arrow keeps the dictionary by itself
  )


@pytest.mark.slow
def test_rows_that_share_one_large_cell_are_refused_at_the_first(tmp_path):
  path = tmp_path / "x.parquet"
  write_dictionary_bomb(path)
  assert path.stat().st_size < 10_000
  source = open_dataset(path, num_classes=1)
  message = r"column 'image' unfolds from [\d,]+ bytes to [\d,]+, more than"
  started = time.monotonic()
  for index in range(1000):
    with pytest.raises(InputError, match=message):
      source[index]
  assert time.monotonic() - started < 2


def test_a_photograph_that_is_there_often_is_read_each_time(tmp_path):
  cell = pa.array([bytes(1 << 20)], pa.binary())
  images = pa.DictionaryArray.from_arrays(pa.array([0] * 900), cell)
  table = pa.table({"image": images, "label": [0] * 900})
  pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
  source = open_dataset(tmp_path / "x.parquet", num_classes=1)
  for index in range(0, 900, 100):
    assert len(source[index].image) == 1 << 20


def write_footer(path, rows: int) -> None:
  """A Parquet file of two rows whose footer states another number of them."""
  pyarrow.parquet.write_table(
    pa.table({"image": [b"x", b"y"], "label": [0, 0]}), path
  )
  data = path.read_bytes()
  length = struct.unpack("<I", data[-8:-4])[0]
  footer = data[-8 - length : -8]
  # Thrift writes i64 as zigzag varints; 2 rows are the byte 4.
  varint = b""
  value = rows * 2
  while value > 0x7F:
    varint += bytes([value & 0x7F | 0x80])
    value >>= 7
  varint += bytes([value])
  footer = footer.replace(b"\x16\x04", b"\x16" + varint)
  path.write_bytes(
    data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
  )


@pytest.mark.parametrize("rows", [2 * 10**9, 2**61])
def test_a_parquet_footer_that_claims_too_many_rows_is_refused(tmp_path, rows):
  write_footer(tmp_path / "x.parquet", rows)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  with refused(r"x.parquet' states [\d,]+ rows, and a file may have"):
    open_dataset(tmp_path / "x.parquet", num_classes=1)
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert (after - before) * 1024 < MOST_BYTES


def test_an_npz_array_that_states_more_than_it_has_is_damaged(tmp_path):
  shape = (
    "{'descr': '|u1', 'fortran_order': False, 'shape': (9, 1000000000000)}"
  )
  text = f"{shape}\n".encode()
  with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    archive.writestr("image.npy", header)

  with refused("9,000,000,000,000 bytes are stated"):
    open_dataset(tmp_path / "x.npz")
