"""What an npz states of itself is bounded before it is believed."""

import io
import struct

import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.extract.npy import MAX_DIRECTORY_BYTES, open_archive
from oneshot_dp.extract.weights import read_tensors
from oneshot_dp.pipeline.import_table import import_table
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import open_dataset

END_BYTES = 22
MESSAGE = "a list of arrays of 16,777,215 bytes, which may have 4,194,304"


def npz_with_directory_of(num_bytes: int, *, large: bool) -> bytes:
  """An npz whose end states a list of so many bytes, as a million names have.

  A large zip states it in a record of its own, of 64 bits.
  """
  content = io.BytesIO()
  np.savez(content, image=np.full((2, 4, 4, 3), 200, np.uint8), label=[0, 1])
  # So many bytes are before the end, and may be the list for all that is known.
  data = bytearray(num_bytes) + content.getvalue()
  end = len(data) - END_BYTES
  if not large:
    data[end + 12 : end + 16] = struct.pack("<I", num_bytes)
    return bytes(data)
  count, _, start = struct.unpack("<HII", data[end + 10 : end + 20])
  record = struct.pack(
    "<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, num_bytes, start
  )
  locator = struct.pack("<IIQI", 0x07064B50, 0, end, 1)
  return bytes(data[:end]) + record + locator + bytes(data[end:])


@pytest.mark.parametrize("large", [False, True])
def test_archive_of_a_long_list_of_arrays_is_refused_unread(large):
  data = npz_with_directory_of((1 << 24) - 1, large=large)

  with pytest.raises(ValueError, match=MESSAGE):
    open_archive(io.BytesIO(data))


def test_archive_with_a_second_end_within_its_end_is_read_by_one_of_them():
  """The bound is of the list that is read, and not of another in the file."""
  data = bytearray(npz_with_directory_of((1 << 24) - 1, large=False))
  # The place of the list, as a number, is the mark of another end, which ends
  # after the file and so states no length.
  end = len(data) - END_BYTES
  data[end + 16 : end + 20] = b"PK\x05\x06"

  with pytest.raises(ValueError, match=MESSAGE):
    open_archive(io.BytesIO(data))


def test_array_that_is_longer_than_a_list_may_be_is_read():
  content = io.BytesIO()
  np.savez(content, x=np.zeros(MAX_DIRECTORY_BYTES, np.uint8))

  archive = open_archive(content)

  assert len(archive.open("x.npy").read()) > MAX_DIRECTORY_BYTES


def test_npz_of_a_long_list_of_arrays_is_no_data_set_and_no_weights(tmp_path):
  path = tmp_path / "x.npz"
  path.write_bytes(npz_with_directory_of((1 << 24) - 1, large=False))

  with refused(MESSAGE):
    open_dataset(path, num_classes=2)
  with refused(MESSAGE):
    import_table(path, tmp_path / "cache", num_classes=2)
  with refused(MESSAGE):
    read_tensors(path)


@pytest.mark.slow
def test_weights_of_a_long_list_of_arrays_are_refused_unread(tmp_path):
  arrays = {f"{i:090}": np.zeros(0, np.float32) for i in range(30_000)}
  safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors")

  with refused(r"a header of 4,\d+,\d+ bytes, which may have 4,194,304"):
    read_tensors(tmp_path / "x.safetensors")
