import numpy as np
import pytest
import safetensors.numpy

from configs.errors import InputError
from pipeline.head_directory import read_head


def test_three_files_and_no_more(head):
  assert sorted(p.name for p in head.iterdir()) == [
    "README.md",
    "head.safetensors",
    "receipt.json",
  ]


def test_the_weights_are_what_other_tools_read(head):
  tensors = safetensors.numpy.load_file(head / "head.safetensors")
  assert {k: (v.shape, v.dtype.name) for k, v in tensors.items()} == {
    "kernel": ((6, 4), "float32"),
    "bias": ((4,), "float32"),
  }
  saved = read_head(head)
  np.testing.assert_array_equal(saved.head.kernel, tensors["kernel"])
  np.testing.assert_array_equal(saved.head.bias, [-10] * 4)


@pytest.mark.parametrize("name", ["head.safetensors", "receipt.json"])
def test_a_missing_file(head, name):
  (head / name).unlink()
  with pytest.raises(InputError, match=f"is not a head: it has no {name}"):
    read_head(head)


def tensors(**arrays: np.ndarray) -> bytes:
  return safetensors.numpy.save(arrays)


ROW = np.zeros(4, np.float32)
SQUARE = np.zeros((4, 4), np.float32)


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b"short",
    b"\xff" * 400,
    tensors(kernel=SQUARE),
    tensors(kernel=SQUARE, bias=SQUARE),
    tensors(kernel=ROW, bias=ROW),
    tensors(kernel=SQUARE, bias=ROW[:3]),
  ],
  ids=["empty", "short", "noise", "no bias", "bias 2-D", "kernel 1-D", "K"],
)
def test_damaged_weights(head, content):
  (head / "head.safetensors").write_bytes(content)
  with pytest.raises(InputError, match=r"head.safetensors is damaged \(.*\);"):
    read_head(head)


def test_weights_cut_short(head):
  file = head / "head.safetensors"
  file.write_bytes(file.read_bytes()[:-7])
  with pytest.raises(InputError, match="is damaged"):
    read_head(head)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null"])
def test_a_damaged_receipt(head, content):
  (head / "receipt.json").write_text(content)
  with pytest.raises(InputError, match=r"receipt.json is damaged \(.*\);"):
    read_head(head)
