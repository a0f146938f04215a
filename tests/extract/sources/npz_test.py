"""Images in an npz, and every archive that is none."""

import datetime
import io
import pathlib
import pickle
import re
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.job.listing import listing_digest
from oneshot_dp.extract.sources import npz
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  make_arrays,
  open_dataset,
  reopen_from_listing,
  units_of,
)


def save_npz(folder: pathlib.Path, **values: Any) -> pathlib.Path:
  path = folder / "pets.npz"
  np.savez(path, **values)
  return path


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, ">i8"])
def test_an_npz_of_any_integers_has_its_rows_as_examples(
  tmp_path, channels, dtype
):
  values = make_arrays(channels=channels)
  values["label"] = values["label"].astype(dtype)
  path = save_npz(tmp_path, **values)

  listed = open_dataset(path)

  for source in (listed, reopen_from_listing(listed)):
    assert (len(source), source.name, source.split) == (7, "pets", "all")
    assert source.class_names == ("cat", "dog", "eel")
    assert source.display_path(3) == f"{path}[3]"
    for row, example in enumerate(source):
      np.testing.assert_array_equal(
        example.image, values["image"][row], strict=True
      )
      assert type(example.label) is int
      assert example.label == row % 3


def test_an_npz_that_changed_is_another_source_and_is_not_read(tmp_path):
  values = make_arrays()
  listed = open_dataset(save_npz(tmp_path, **values))
  np.savez_compressed(tmp_path / "pets.npz", **values)

  assert listing_digest(open_dataset(tmp_path / "pets.npz")) != listing_digest(
    listed
  )
  npz._arrays.clear()  # as in another process
  with refused("was changed since", RunError):
    reopen_from_listing(listed)[0]


def test_an_npz_of_two_splits_is_read_by_the_split_asked_for(tmp_path):
  train = {f"train_{key}": value for key, value in make_arrays(7).items()}
  test = {f"test_{key}": value for key, value in make_arrays(4).items()}
  path = save_npz(tmp_path, **train, **test)
  names = ("x", "y", "z")

  source = open_dataset(path, split="test", class_names=names)

  assert len(open_dataset(path, split="train", class_names=names)) == 7
  np.testing.assert_array_equal(source[3].image, test["test_image"][3])


@pytest.mark.parametrize(
  ("split", "message"),
  [
    (None, "give --split, one of 'test', 'train'"),
    ("val", "is none of 'test', 'train'"),
  ],
)
def test_an_npz_of_two_splits_without_a_choice_is_refused(
  tmp_path, split, message
):
  values: dict[str, Any] = {}
  for key, value in make_arrays().items():
    values[f"train_{key}"] = value
    values[f"test_{key}"] = value
  path = save_npz(tmp_path, **values)
  with refused(message):
    open_dataset(path, split=split)


def test_an_npz_in_the_form_of_medmnist_is_read(tmp_path):
  """Plural names, labels [n, 1], and gray images without a channel."""
  values: dict[str, Any] = {}
  for split, rows in (("train", 7), ("val", 4), ("test", 2)):
    arrays = make_arrays(rows, channels=1)
    values[f"{split}_images"] = np.repeat(arrays["image"][..., 0], 2, axis=2)
    values[f"{split}_labels"] = arrays["label"][:, None].astype(np.uint8)
  path = save_npz(tmp_path, **values)

  source = open_dataset(path, split="val", num_classes=3)

  assert [example.label for example in source] == [0, 1, 2, 0]
  image = values["val_images"][3][..., None]
  np.testing.assert_array_equal(source[3].image, image, strict=True)


def test_an_npz_of_one_named_split_needs_no_flag(tmp_path):
  train = {f"train_{key}": value for key, value in make_arrays().items()}
  source = open_dataset(save_npz(tmp_path, **train), num_classes=4)
  assert source.split == "train"


STRUCTURED = np.zeros(7, [("\x1b[2J", "u1")])
DATES = np.full(7, np.datetime64("2020-01-01"))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"image": None}, "has no array 'image': has 'label', 'class_names'"),
    ({"label": None}, "has no array 'label'"),
    ({"image": np.zeros((7, 4, 5, 3))}, r"float64 \[7, 4, 5, 3\]: images must"),
    ({"image": np.zeros((7, 4, 3), np.uint8)}, r"uint8 \[7, 4, 3\]: im"),
    ({"image": np.zeros((7, 4, 5, 4), np.uint8)}, r"uint8 \[n, h, w, 3\], "),
    ({"image": np.zeros((7, 0, 5, 3), np.uint8)}, "and not empty"),
    ({"image": STRUCTURED}, "must be uint8"),
    ({"label": np.arange(6) % 3}, "damaged: 6 of 7 rows"),
    ({"label": np.zeros((7, 2), int)}, r"int64 \[7, 2\]: it must"),
    ({"label": np.arange(7) % 3 / 1.0}, "float64 .*a list of integers"),
    ({"label": np.zeros(7, bool)}, "bool .*a list of integers"),
    ({"label": DATES}, r"datetime64\[D\] .*of integers"),
    ({"label": np.arange(7) % 5}, "not one of the 3 classes"),
    ({"label": np.arange(7) % 3 - 1}, "not one of the 3 classes"),
    ({"label": np.array(["a"] * 7, object)}, "of plain arrays: Object arrays"),
    ({"class_names": np.array(["cat", "dog", "cat"])}, "'cat' more than once"),
    ({"class_names": np.arange(3)}, r"int64 \[3\]: it must"),
    ({"class_names": np.array([], str)}, "no classes: give --class-names or"),
    ({"class_names": np.array(["a", "b\x1b", "c"])}, "control characters"),
    ({"unit_id": np.arange(7)}, "has a unit_id: name it with --units"),
    ({"owner": np.arange(6)}, "damaged: 6 of 7 rows"),
    ({"owner": np.arange(7.0)}, "float64 .* of integers"),
    ({"owner": np.full(7, 2**64 - 1, np.uint64)}, "all integers of 64 bits"),
    ({"owner": np.array([" "] * 7)}, "images without owner"),
  ],
)
def test_an_array_of_another_kind_is_refused_by_name(
  tmp_path, changes, message
):
  values = make_arrays() | changes
  values = {key: value for key, value in values.items() if value is not None}
  units = "owner" if "owner" in changes else None
  with refused(message) as caught:
    open_dataset(save_npz(tmp_path, **values), units=units)
  assert re.search("pets.npz|^--units 'owner'", str(caught.value))


def damaged_files(folder: pathlib.Path) -> dict[str, bytes]:
  """Bytes that are not, or no longer, an npz of plain arrays."""
  np.savez_compressed(folder / "good.npz", **make_arrays())
  good = (folder / "good.npz").read_bytes()
  plain = save_npz(folder, **make_arrays()).read_bytes()
  npy = io.BytesIO()
  np.save(npy, make_arrays()["image"])
  version = good.index(b"PK\x01\x02") + 6
  return {
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


def test_a_damaged_npz_is_refused_in_one_line(tmp_path):
  for name, content in damaged_files(tmp_path).items():
    (tmp_path / f"{name}.npz").write_bytes(content)
    with refused("is not a readable npz"):
      open_dataset(tmp_path / f"{name}.npz")


def test_an_npy_that_is_called_npz_says_how_to_save_one(tmp_path):
  np.save(tmp_path / "x.npy", make_arrays()["image"])
  (tmp_path / "x.npy").rename(tmp_path / "x.npz")
  with refused("is not a readable npz of plain arrays: use numpy.savez"):
    open_dataset(tmp_path / "x.npz", save_npz(tmp_path, **make_arrays()))


@pytest.mark.parametrize("array", ["owner", "unit_id"])
@pytest.mark.parametrize(
  "owners", [[5, -1, 5, 2**40, 5, 0, -1], ["a", "b", "a ", *"cdef"]]
)
def test_an_array_of_owners_is_the_unit_of_each_image(tmp_path, array, owners):
  path = save_npz(tmp_path, **make_arrays(), **{array: np.array(owners)})
  source = open_dataset(path, units="owner")
  ids = units_of(source)
  assert source.unit == "owner"
  assert ids[0] == ids[2] != ids[1]
  assert ids == owners or isinstance(owners[0], str)


@pytest.mark.parametrize("dtype", ["U", "S"])
def test_an_npz_whose_array_says_several_splits_is_refused(tmp_path, dtype):
  splits = np.array(["train"] * 5 + ["test"] * 2, dtype)
  path = save_npz(tmp_path, **make_arrays(), split=splits)
  with refused("several splits in its column 'split' .'test', 'train'"):
    open_dataset(path)


@pytest.mark.parametrize("names", ["split fold", "fold split"])
def test_several_splits_of_an_npz_are_refused_beside_another_array(
  tmp_path, names
):
  """`fold` may be names of folds, which say nothing of test rows."""
  says = {
    "split": np.array(["train"] * 5 + ["test"] * 2),
    "fold": np.array(list("0120120")),
  }
  named = {name: says[name] for name in names.split()}
  path = save_npz(tmp_path, **make_arrays(), **named)
  with refused("several splits in its column 'split'"):
    open_dataset(path)


def test_an_npz_whose_array_says_one_split_is_read(tmp_path):
  path = save_npz(tmp_path, **make_arrays(), split=np.array(["train"] * 7))
  assert len(open_dataset(path)) == 7


@pytest.mark.parametrize("brightest", [0, 1, 16])
def test_pixels_that_are_not_scaled_to_255_are_refused(tmp_path, brightest):
  """They would all come out black."""
  arrays = make_arrays()
  arrays["image"] = np.minimum(arrays["image"], brightest).astype(np.uint8)
  np.savez(tmp_path / "x.npz", **arrays)

  with refused(f"no pixel of 'image' is above {brightest}, and 255 is white"):
    open_dataset(tmp_path / "x.npz")
