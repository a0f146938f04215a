"""Tables as engines write them: tensors of pixels, folders that are columns."""

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  open_dataset,
  write_table,
)

IMAGES = [b"image %d" % i for i in range(70)]
PIXELS = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)


def tensor_column(writer: str) -> tuple[pa.Array, dict[str, str]]:
  """Two images [2, 3, 3] as an engine writes them, and what it notes of them.

  The schemas are those of files that Ray 2.60 and Daft 0.7.26 wrote, and of
  Spark's documentation of its `image` data source.
  """
  flat = [image.ravel().tolist() for image in PIXELS]
  noted: dict[str, str] = {}
  values: list[Any] = flat
  if writer == "arrow":
    kind = pa.list_(pa.uint8(), 18)
    tensor = pa.fixed_shape_tensor(pa.uint8(), (2, 3, 3))
    storage = pa.array(flat, kind)
    return pa.ExtensionArray.from_storage(tensor, storage), noted
  if writer == "ray":
    kind = pa.large_list(pa.uint8())
    noted["ARROW:extension:name"] = "ray.data.arrow_tensor_v2"
    noted["ARROW:extension:metadata"] = "[2, 3, 3]"
  elif writer == "daft":
    kind = pa.list_(pa.uint8(), 18)
    noted["ARROW:extension:name"] = "daft.super_extension"
    details = {"datatype": {"FixedShapeTensor": ["UInt8", [2, 3, 3]]}}
    noted["ARROW:extension:metadata"] = json.dumps(details)
  elif writer == "ray, of any shape":
    kind = pa.struct({"data": pa.list_(pa.uint8()), "shape": INT64S})
    values = [{"data": data, "shape": [2, 3, 3]} for data in flat]
  elif writer == "daft, an image":
    sides = {"channel": pa.uint16(), "height": pa.uint32()}
    sides |= {"width": pa.uint32(), "mode": pa.uint8()}
    kind = pa.struct({"data": pa.large_list(pa.uint8()), **sides})
    sizes = {"height": 2, "width": 3, "channel": 3, "mode": 3}
    values = [{"data": data, **sizes} for data in flat]
  else:
    names = ("height", "width", "nChannels", "mode")
    sides = dict.fromkeys(names, pa.int32())
    kind = pa.struct({"origin": pa.string(), **sides, "data": pa.binary()})
    sizes = {"height": 2, "width": 3, "nChannels": 3, "mode": 16}
    values = []
    for image in PIXELS:
      bgr = image[..., ::-1].tobytes()
      values.append({"origin": "x.png", **sizes, "data": bgr})
  return pa.array(values, kind), noted


INT64S = pa.list_(pa.int64())
WRITERS = [
  "arrow",
  "ray",
  "daft",
  "ray, of any shape",
  "daft, an image",
  "spark",
]


@pytest.mark.parametrize("writer", WRITERS)
def test_pixels_are_read_as_engines_write_them(tmp_path, writer):
  array, noted = tensor_column(writer)
  schema = pa.schema(
    [pa.field("image", array.type, metadata=noted), ("label", pa.int64())]
  )
  table = pa.table([array, pa.array([0, 1])], schema)
  pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
  source = open_dataset(tmp_path / "x.parquet", num_classes=2)
  for index in range(2):
    np.testing.assert_array_equal(source[index].image, PIXELS[index])


def test_pixels_that_do_not_fit_their_shape_are_refused(tmp_path):
  kind = pa.struct({"data": pa.list_(pa.uint8()), "shape": INT64S})
  cells = [{"data": [1, 2, 3, 4], "shape": [1, 1, 3]}, None]
  table = pa.table({"image": pa.array(cells, kind), "label": [0, 1]})
  pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
  source = open_dataset(tmp_path / "x.parquet", num_classes=2)
  with pytest.raises(RunError, match="4 values are no image of shape"):
    source.image(0)
  assert source.image(1) == b""


@pytest.fixture
def partitioned(tmp_path) -> pathlib.Path:
  """Rows in folders split=…/label=…, one of them of a split's name."""
  folder = tmp_path / "pets"
  labels = ["cat", "test", "big dog", "cat"]
  table = pa.table(
    {
      "image": IMAGES[:4],
      "label": labels,
      "patient": ["ann", "bo", "ann", "cy"],
      "split": ["train"] * 3 + ["test"],
    }
  )
  pyarrow.parquet.write_to_dataset(
    table, folder, partition_cols=["split", "label", "patient"]
  )
  (folder / "_SUCCESS").touch()
  return folder


def test_folders_of_partitions_are_the_columns_of_their_files(partitioned):
  names = ("cat", "big dog", "test")
  source = open_dataset(
    partitioned, split="train", class_names=names, units="patient"
  )
  found = {}
  for index in range(len(source)):
    label = names[source.labels[index]]
    found[source.image(index)] = label, source.unit_ids[index]
  assert {image: label for image, (label, _) in found.items()} == {
    IMAGES[0]: "cat",
    IMAGES[1]: "test",
    IMAGES[2]: "big dog",
  }
  assert found[IMAGES[0]][1] == found[IMAGES[2]][1] != found[IMAGES[1]][1]


def test_the_classes_of_partitions_are_named_by_a_flag(partitioned):
  with pytest.raises(InputError, match="names no classes: give --class-names"):
    open_dataset(partitioned, split="train")


def test_folders_above_a_data_set_say_nothing_of_its_rows(tmp_path):
  folder = tmp_path / "label=dog" / "photos"
  write_table(folder / "0.parquet", IMAGES[:2])

  for location in (folder, folder / "0.parquet"):
    with pytest.raises(InputError, match="has nothing that can be its --label"):
      open_dataset(location, class_names=("cat", "dog"))


def test_folders_that_a_pattern_matches_are_columns(tmp_path):
  for name, image in (("cat", IMAGES[0]), ("dog", IMAGES[1])):
    write_table(tmp_path / f"pets/label={name}/0.parquet", [image])

  source = open_dataset(
    tmp_path / "pets/label=*/*.parquet", class_names=("cat", "dog")
  )

  assert source.labels.tolist() == [0, 1]


def test_a_tensor_with_its_sides_in_another_order_is_refused(tmp_path):
  """Its rows would be read as columns."""
  tensor = pa.fixed_shape_tensor(pa.uint8(), (2, 4, 3), permutation=[1, 0, 2])
  pixels = pa.array([list(range(24))], tensor.storage_type)
  images = pa.ExtensionArray.from_storage(tensor, pixels)
  table = pa.table({"image": images, "label": [0]})
  pa.parquet.write_table(table, tmp_path / "x.parquet")

  with refused("has nothing that can be its --image"):
    open_dataset(tmp_path / "x.parquet", num_classes=2)
