import pathlib
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs import extract_config
from oneshot_dp.extract.sources.example import Source
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.refusals import refused

NAMES = np.array(["cat", "dog", "eel"])


def arrays(rows: int = 7, channels: int = 3) -> dict[str, Any]:
  rng = np.random.default_rng(rows)
  return {
    "image": rng.integers(0, 256, (rows, 4, 5, channels), np.uint8),
    "label": np.arange(rows) % 3,
    "class_names": NAMES,
  }


def opened(folder: pathlib.Path, split: str = "train", **values: Any) -> Source:
  path = folder / "pets.npz"
  np.savez(path, **values)
  return open_source(extract_config.ArraysSource(path=str(path)), split)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, ">i8", np.uint64])
def test_rows_are_examples(tmp_path, channels, dtype):
  values = arrays(channels=channels)
  values["label"] = values["label"].astype(dtype)
  found = opened(tmp_path, **values)
  assert (len(found), found.name, found.version) == (7, "pets", "")
  assert found.class_names == ("cat", "dog", "eel")
  for row in range(7):
    read = found[row]
    np.testing.assert_array_equal(read.image, values["image"][row], strict=True)
    assert (read.label, read.example_id) == (row % 3, row)
    assert type(read.label) is int
    assert type(read.example_id) is int
  assert found.where(3) == f"{tmp_path}/pets.npz[3]"


def test_compressed_file_with_its_own_ids_and_name(tmp_path):
  path = tmp_path / "x.npz"
  ids = np.array([7, -1, 2**40, 3, 0, 5, 6])
  np.savez_compressed(path, example_id=ids, **arrays())
  config = extract_config.ArraysSource(
    path=str(path), name="pets", num_classes=3
  )
  found = open_source(config, "train")
  assert found.name == "pets"
  assert [found[row].example_id for row in range(7)] == ids.tolist()


def counted(folder: pathlib.Path, with_names: bool, num_classes: int) -> Source:
  values = arrays()
  if not with_names:
    del values["class_names"]
  np.savez(folder / "x.npz", **values)
  return open_source(
    extract_config.ArraysSource(
      path=str(folder / "x.npz"), num_classes=num_classes
    ),
    "train",
  )


def test_number_of_classes_instead_of_names(tmp_path):
  found = counted(tmp_path, False, 5)
  assert found.class_names == ("0", "1", "2", "3", "4")


def test_splits_of_one_file(tmp_path):
  train, test = arrays(7), arrays(4)
  values = {
    **{f"train_{key}": train[key] for key in ("image", "label")},
    **{f"test_{key}": test[key] for key in ("image", "label")},
    "test_example_id": np.arange(4) + 100,
    "class_names": NAMES,
  }
  assert len(opened(tmp_path, "train", **values)) == 7
  found = opened(tmp_path, "test", **values)
  np.testing.assert_array_equal(found[3].image, test["image"][3])
  assert (len(found), found[3].example_id) == (4, 103)
  assert found.where(3) == f"{tmp_path}/pets.npz:test[3]"
  with refused("no split 'val': it has train, test"):
    opened(tmp_path, "val", **values)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"image": None}, "has no image array: it has label, class_names"),
    ({"image": None, "label": None}, "no image and no label array: it has cl"),
    ({"class_names": None}, "names no classes: add class_names, or give"),
    ({"image": np.zeros((7, 4, 5, 3))}, r"\[image\] is float64 \[7, 4, 5, 3\]"),
    ({"image": np.full((7, 4, 5, 3), np.nan)}, "must be uint8"),
    ({"image": np.zeros((7, 4, 5), np.uint8)}, r"uint8 \[7, 4, 5\]: it must"),
    ({"image": np.zeros((7, 4, 5, 4), np.uint8)}, r"\[n, h, w, 3\] or"),
    ({"image": np.zeros((7, 0, 5, 3), np.uint8)}, "none of them empty"),
    ({"image": np.zeros((0, 4, 5, 3), np.uint8)}, "none of them empty"),
    ({"label": np.arange(6) % 3}, r"label\] is int64 \[6\]: .* per row, \[7"),
    ({"label": np.zeros((7, 1), int)}, r"int64 \[7, 1\]: it must be integers"),
    ({"label": np.arange(7) % 3 / 1.0}, "float64 .* must be integers"),
    ({"label": np.full(7, np.nan)}, "float64 .* must be integers"),
    ({"label": np.zeros(7, bool)}, "bool .* must be integers"),
    ({"label": np.arange(7) % 5}, r"\[label\]\[3\] is not one of the 3 class"),
    ({"label": np.arange(7) % 3 - 1}, r"\[label\]\[0\] is not one of"),
    ({"label": np.array(["a"] * 7, object)}, "of plain arrays: Object arrays"),
    ({"example_id": np.array([1, 2, 3, 2, 5, 6, 7])}, "has 2 more than once"),
    ({"example_id": np.arange(6)}, r"\[example_id\] is int64 \[6\]"),
    ({"example_id": np.arange(7) / 2}, "float64 .* must be integers"),
    ({"example_id": np.full(7, 2**63, np.uint64)}, "more than an int64 holds"),
    ({"class_names": np.array(["cat", "dog", "cat"])}, "'cat' more than once"),
    ({"class_names": np.arange(3)}, r"\[class_names\] is int64 \[3\]"),
    ({"class_names": np.array([b"cat"])}, "must be a list of strings"),
    ({"class_names": np.array([], str)}, "must be a list of strings"),
    ({"class_names": NAMES[None]}, "must be a list of strings"),
  ],
)
def test_arrays_that_are_not_right(tmp_path, changes, message):
  values = arrays() | changes
  values = {key: value for key, value in values.items() if value is not None}
  with refused(message) as caught:
    opened(tmp_path, **values)
  assert str(tmp_path / "pets.npz") in str(caught.value)


@pytest.mark.parametrize(
  ("with_names", "num_classes", "message"),
  [
    (False, 0, "num_classes=0 must be positive"),
    (False, 2, "is not one of the 2 classes"),
    (True, 4, "num_classes=4 but .* has 3"),
  ],
)
def test_wrong_number_of_classes(tmp_path, with_names, num_classes, message):
  with refused(message):
    counted(tmp_path, with_names, num_classes)


def test_files_that_are_no_npz(tmp_path):
  np.savez_compressed(tmp_path / "good.npz", **arrays())
  good = (tmp_path / "good.npz").read_bytes()
  np.savez(tmp_path / "plain.npz", **arrays())
  plain = (tmp_path / "plain.npz").read_bytes()
  version = good.index(b"PK\x01\x02") + 6
  files = {
    "empty.npz": b"",
    "version.npz": good[:version] + b"\xff\0" + good[version + 2 :],
    "bracket.npz": plain.replace(b"), }", b" , }"),
    "text.npz": b"not an archive",
    "cut.npz": good[: len(good) // 2],
    # The checksum notices the one, the decompression the other.
    "zeros.npz": good[:60] + bytes(40) + good[100:],
    "ones.npz": good[:59] + b"\xff" * 41 + good[100:],
  }
  for name, content in files.items():
    (tmp_path / name).write_bytes(content)
  np.save(tmp_path / "array.npy", arrays()["image"])
  for name, message in {
    **dict.fromkeys(files, "is not a readable npz of plain arrays: "),
    "array.npy": "holds a single array",
    "absent.npz": "No such file",
    "": "not a readable npz",
  }.items():
    config = extract_config.ArraysSource(path=str(tmp_path / name))
    with refused(message):
      open_source(config, "train")


@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(
  st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9),
)
def test_ids_are_kept_or_refused(tmp_path_factory, ids):
  folder = tmp_path_factory.mktemp("npz")
  values = arrays(len(ids)) | {"example_id": np.array(ids, np.int64)}
  if len(set(ids)) < len(ids):
    with refused("more than once"):
      opened(folder, **values)
  else:
    found = opened(folder, **values)
    assert [found[row].example_id for row in range(len(ids))] == ids


def test_reads_the_real_material(shared_data):
  config = extract_config.ArraysSource(
    path=str(shared_data / "cifar10_images.npz")
  )
  found = open_source(config, "test")
  assert (len(found), len(found.class_names)) == (2000, 10)
  assert np.shape(found[1999].image) == (32, 32, 3)


def with_units(folder: pathlib.Path, units: Any) -> extract_config.ArraysSource:
  path = folder / "pets.npz"
  np.savez(path, **arrays(), unit_id=units)
  return extract_config.ArraysSource(path=str(path), unit_name="owner")


def test_whose_an_image_is(tmp_path):
  units = np.array([5, -1, 5, 2**40, 5, 0, -1])
  found = open_source(with_units(tmp_path, units), "train")
  assert found.privacy_unit == "owner"
  assert [found[row].unit_id for row in range(7)] == units.tolist()
  assert type(found[0].unit_id) is int
  plain = opened(tmp_path, **arrays())
  assert (plain.privacy_unit, plain[0].unit_id) == ("example", None)


@pytest.mark.parametrize(
  ("units", "message"),
  [
    (np.arange(6), r"unit_id\] is int64 \[6\]"),
    (np.arange(7.0), r"unit_id\] is float64"),
    (np.full(7, 2**64 - 1, np.uint64), "more than an int64 holds"),
  ],
)
def test_malformed_units(tmp_path, units, message):
  with refused(message):
    open_source(with_units(tmp_path, units), "train")


def test_units_and_their_name_come_together(tmp_path):
  with refused("has unit_id and source"):
    opened(tmp_path, **arrays(), unit_id=np.arange(7))
  np.savez(tmp_path / "x.npz", **arrays())
  config = extract_config.ArraysSource(
    path=str(tmp_path / "x.npz"), unit_name="user"
  )
  with refused("has no unit_id and source"):
    open_source(config, "train")


@pytest.mark.parametrize("name", ["example", "", "a\nb", "é" * 3, "u" * 41])
def test_names_that_name_no_unit(name):
  for source in (
    extract_config.ArraysSource(path="x.npz", unit_name=name),
    extract_config.TfdsSource(name="x", unit_key=name),
  ):
    with refused("must be a short public one"):
      extract_config.ExtractConfig(source=source)
