"""Images in an npz or a tar, and every archive that is none."""

import datetime
import io
import pathlib
import pickle
import re
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources import archives
from oneshot_dp.extract.sources.open_source import serialize_source
from tests.extract.refusals import refused
from tests.extract.sources.made import again, arrays, opened, write_tar


def saved(folder: pathlib.Path, **values: Any) -> pathlib.Path:
  np.savez(folder / "pets.npz", **values)
  return folder / "pets.npz"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, ">i8"])
def test_rows_are_examples(tmp_path, channels, dtype):
  values = arrays(channels=channels)
  values["label"] = values["label"].astype(dtype)
  path = saved(tmp_path, **values)
  found = opened(path)
  for source in (found, again(found)):
    assert (len(source), source.name, source.split) == (7, "pets", "all")
    assert source.class_names == ("cat", "dog", "eel")
    for row, (label, image, _) in enumerate(source):
      np.testing.assert_array_equal(image, values["image"][row], strict=True)
      assert (type(label), label) == (int, row % 3)
    assert source.display_path(3) == f"{path}[3]"
  np.savez_compressed(path, **values)
  assert serialize_source(opened(path)) != serialize_source(found)
  archives._kept.cache_clear()  # as in another process
  with refused("was changed since", RunError):
    again(found)[0]


def test_splits_of_one_file(tmp_path):
  train = {f"train_{key}": values for key, values in arrays(7).items()}
  test = {f"test_{key}": values for key, values in arrays(4).items()}
  path = saved(tmp_path, **train, **test)
  names = {"class_names": ("x", "y", "z")}
  assert len(opened(path, split="train", **names)) == 7
  found = opened(path, split="test", **names)
  np.testing.assert_array_equal(found[3].image, test["test_image"][3])
  for split, said in (None, "give --split, one of"), ("val", "is none of"):
    with refused(f"{said} 'test', 'train'"):
      opened(path, split=split)
  assert opened(saved(tmp_path, **train), num_classes=4).split == "train"


STRUCTURED = np.zeros(7, [("\x1b[2J", "u1")])
DATES = np.full(7, np.datetime64("2020-01-01"))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"image": None}, "has no array 'image': it has 'label', 'class_names'"),
    ({"label": None}, "has no array 'label'"),
    ({"image": np.zeros((7, 4, 5, 3))}, r"float64 \[7, 4, 5, 3\]: images must"),
    ({"image": np.zeros((7, 4, 5), np.uint8)}, r"uint8 \[7, 4, 5\]: im"),
    ({"image": np.zeros((7, 4, 5, 4), np.uint8)}, r"\[n, h, w, 3\] or"),
    ({"image": np.zeros((7, 0, 5, 3), np.uint8)}, "and not empty"),
    ({"image": STRUCTURED}, "must be uint8"),
    ({"label": np.arange(6) % 3}, "damaged: 6 of 7 rows"),
    ({"label": np.zeros((7, 1), int)}, r"int64 \[7, 1\]: it must"),
    ({"label": np.arange(7) % 3 / 1.0}, "float64 .*a list of integers"),
    ({"label": np.zeros(7, bool)}, "bool .*a list of integers"),
    ({"label": DATES}, r"datetime64\[D\] .*of integers"),
    ({"label": np.arange(7) % 5}, "without a label .* 3 classes"),
    ({"label": np.arange(7) % 3 - 1}, "without a label .* 3 classes"),
    ({"label": np.array(["a"] * 7, object)}, "of plain arrays: Object arrays"),
    ({"class_names": np.array(["cat", "dog", "cat"])}, "'cat' more than once"),
    ({"class_names": np.arange(3)}, r"int64 \[3\]: it must"),
    ({"class_names": np.array([], str)}, "no classes: give --class-names or"),
    ({"class_names": np.array(["a", "b\x1b", "c"])}, "control characters"),
    ({"unit_id": np.arange(7)}, "has a unit_id: name it with --units"),
    ({"owner": np.arange(6)}, "damaged: 6 of 7 rows"),
    ({"owner": np.arange(7.0)}, "float64 .* of integers"),
    ({"owner": np.full(7, 2**64 - 1, np.uint64)}, "all integers of 64 bits"),
    ({"owner": np.array([" "] * 7)}, "images without a owner"),
  ],
)
def test_arrays_that_are_not_right(tmp_path, changes, message):
  values = arrays() | changes
  values = {key: value for key, value in values.items() if value is not None}
  units = {"units": "owner"} if "owner" in changes else {}
  with refused(message) as caught:
    opened(saved(tmp_path, **values), **units)
  assert re.search("pets.npz|^--units 'owner'", str(caught.value))


def test_files_that_are_no_npz(tmp_path):
  np.savez_compressed(tmp_path / "good.npz", **arrays())
  good = (tmp_path / "good.npz").read_bytes()
  plain = saved(tmp_path, **arrays()).read_bytes()
  np.save(npy := io.BytesIO(), arrays()["image"])
  version = good.index(b"PK\x01\x02") + 6
  files = {
    "empty": b"",
    "version": good[:version] + b"\xff\0" + good[version + 2 :],
    "bracket": plain.replace(b"), }", b" , }"),
    "shape": plain.replace(b"(7, 4, 5, 3)", b"(7, 4, 5, 9999999)"),
    "text": b"not an archive",
    "cut": good[: len(good) // 2],
    # The checksum notices the one, the decompression the other.
    "zeros": good[:60] + bytes(40) + good[100:],
    "ones": good[:59] + b"\xff" * 41 + good[100:],
    "array": npy.getvalue(),
    "pickle": pickle.dumps({"image": datetime.datetime.now}),
  }
  for name, content in files.items():
    (tmp_path / f"{name}.npz").write_bytes(content)
    with refused("is not a readable npz"):
      opened(tmp_path / f"{name}.npz")
  for more in ([], [tmp_path / "good.npz"]):
    with refused("is not a readable npz of plain arrays: use numpy.savez"):
      opened(tmp_path / "array.npz", *more)


@pytest.mark.parametrize("array", ["owner", "unit_id"])
def test_whose_an_image_is(tmp_path, array):
  for units in [5, -1, 5, 2**40, 5, 0, -1], ["a", "b", "a ", *"cdef"]:
    path = saved(tmp_path, **arrays(), **{array: np.array(units)})
    found = opened(path, units="owner")
    assert found.unit == "owner"
    ids = [example.unit_id for example in found]
    assert ids[0] == ids[2] != ids[1]
    assert ids == units or isinstance(units[0], str)


@pytest.mark.parametrize(
  ("members", "said"),
  [
    ({"a.cls": b"0"}, "samples without an image, .*: 'a.cls'"),
    ({"a.png": b"", "a.jpg": b"", "a.cls": b"0"}, "samples without an image"),
    ({"a.png": b"x", "a.json": b"[]"}, "'a.json' cannot be read"),
    ({"a.png": b"x", "a.json": b"[" * 10**5}, "'a.json' cannot be read"),
    ({"a.png": b"x", "a.cls": b"\xff"}, "'a.cls' cannot be read"),
    ({"a.png": b"x"}, r"images without a label 'label' .*x.tar\[0\]"),
    ({"a.png": None, "a.cls": b"0"}, "'a.png' is cut short, a link or"),
    ({"a.png": b"x", "./a.png": b"x"}, "'./a.png' more than once"),
    ({"a\n.png": b"x", "a\n.jpg": b"x"}, r"'a\\n.png'"),
  ],
)
def test_tars_that_are_not_whole(tmp_path, members, said):
  write_tar(tmp_path / "x.tar", members)
  with refused(said):
    opened(tmp_path / "x.tar", num_classes=2)


def test_what_a_tar_has_beside_its_samples_is_passed_over(tmp_path):
  sample = {"./b/1.png": b"x", "./b/1.cls": b"1"}
  litter = {"__MACOSX/b/1.png": b"y", "b/.1.png": b"z", "README": b""}
  for members, found in (litter | sample, [(1, b"x", None)]), (litter, []):
    write_tar(tmp_path / "x.tar", members)
    assert [*opened(tmp_path / "x.tar", num_classes=2)] == found


def test_a_tar_that_ends_before_its_end_is_refused(tmp_path):
  """Python stops at a damaged header, as at the end of a file, in silence."""
  path = tmp_path / "a.tar"
  write_tar(path, {f"{i}.{e}": b"0" for i in range(4) for e in ("png", "cls")})
  header = (data := path.read_bytes()).index(b"2.png")
  for bad in data[: header + 3] + b"x" + data[header + 4 :], data[:header]:
    path.write_bytes(bad)
    with refused("damaged, or cut short"):
      opened(path, num_classes=3)
