import concurrent.futures
import io
import json
import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.processes import python
from tests.extract.refusals import refused

NUM_TRAIN, NUM_TEST = 40, 6
CLASSES = ("cat", "dog", "eel")
F = tfds.features

IMAGE = F.Image(shape=(4, 4, 3))
LABEL = F.ClassLabel(names=CLASSES)
PLAIN = {"image": IMAGE, "label": LABEL}
FEATURES = {
  "plain": PLAIN,
  "keys": {
    "left": IMAGE,
    "right": IMAGE,
    "species": LABEL,
    "mood": F.ClassLabel(names=["calm", "cross"]),
    "owner": F.Scalar(dtype=np.int32),
    "weight": F.Scalar(dtype=np.int64),
    "note": F.Text(),
  },
  "masked": {
    "image": IMAGE,
    "mask": F.LabeledImage(labels=2, shape=(4, 4, 1)),
    "label": F.ClassLabel(num_classes=3),
  },
  "integer_label": {"image": IMAGE, "label": F.Scalar(dtype=np.int64)},
  "nameless_label": {"image": IMAGE, "label": F.ClassLabel()},
  "no_image": {"text": F.Text(), "label": LABEL},
  "deep": PLAIN | {"image": F.Image(shape=(4, 4, 1), dtype=np.uint16)},
  "unlabelled": PLAIN,
  "named": PLAIN | {"file_name": F.Text(), "nickname": F.Text()},
  "offline": PLAIN,
}


LEFT = {"image_key": "left"}


def png(value: int) -> bytes:
  buffer = io.BytesIO()
  Image.new("RGB", (4, 4), (value, 2 * value, 255 - value)).save(buffer, "PNG")
  return buffer.getvalue()


def example(name: str, row: int) -> dict[str, Any]:
  plain = {"image": png(row), "label": row % 3}
  match name:
    case "keys":
      return {
        "left": png(row),
        "right": png(200 - row),
        "species": row % 3,
        "mood": row % 2,
        "owner": row // 4 - 1,
        "weight": row,
        "note": "purrs",
      }
    case "masked":
      return plain | {"mask": png(0)}
    case "named":
      nickname = "mouser9.PNG" if row else "mouser"
      file_name = f"pet_val_{1000 - row:08d}.PNG"
      return plain | {"file_name": file_name, "nickname": nickname}
    case "no_image":
      return {"text": "a cat", "label": row % 3}
    case "unlabelled":
      return plain | {"label": -1}
  return plain


class OneshotPets(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.2.3")
  BUILDER_CONFIGS = tuple(
    tfds.core.BuilderConfig(name=name) for name in FEATURES
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      features=F.FeaturesDict(FEATURES[self.builder_config.name]),
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager: object) -> dict[str, Any]:
    del dl_manager
    if self.builder_config.name == "offline":
      raise ConnectionError("no route\nto   images.example.org")
    return {
      "train": self._generate_examples(0, NUM_TRAIN),
      "test": self._generate_examples(NUM_TRAIN, NUM_TEST),
    }

  def _generate_examples(self, start: int, rows: int) -> Iterator[Any]:
    for row in range(start, start + rows):
      yield row, example(self.builder_config.name, row)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
  return str(tmp_path_factory.mktemp("tfds"))


def pets(
  data_dir: str, name: str = "plain", **keys: str
) -> extract_config.TfdsSource:
  return extract_config.TfdsSource(
    name=f"oneshot_pets/{name}", data_dir=data_dir, **keys
  )


def copied(data_dir: str, into: pathlib.Path) -> pathlib.Path:
  """Copies the prepared plain data set, so that a test can spoil it."""
  open_source(pets(data_dir), "train")
  version = pathlib.Path("oneshot_pets", "plain", "1.2.3")
  shutil.copytree(pathlib.Path(data_dir) / version, into / version)
  return into / version


def edit_info(folder: pathlib.Path, **values: str) -> None:
  path = folder / "dataset_info.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_reads_file_bytes_labels_and_ids_of_each_split(data_dir):
  for split, start, rows in ("train", 0, NUM_TRAIN), ("test", 40, NUM_TEST):
    opened = open_source(pets(data_dir), split)
    assert len(opened) == rows
    for index in range(rows):
      row = start + index
      read = opened[index]
      assert read.image == png(row)
      assert (read.example_id, read.label) == (index, row % 3)
    assert (opened.name, opened.version) == ("oneshot_pets/plain", "1.2.3")
    assert opened.class_names == CLASSES
    assert opened.where(5) == f"oneshot_pets/plain/{split}[5]"


@pytest.mark.parametrize(
  ("split", "rows"),
  [
    ("train[:10%]", range(4)),
    ("train[90%:]", range(36, 40)),
    ("train[3:7]", range(3, 7)),
    ("test+train[:2]", [*range(40, 46), 0, 1]),
  ],
)
def test_slices_start_at_zero_again(data_dir, split, rows):
  opened = open_source(pets(data_dir), split)
  examples = [opened[index] for index in range(len(opened))]
  assert [read.image for read in examples] == [png(row) for row in rows]
  assert [read.example_id for read in examples] == list(range(len(rows)))


def test_prepares_once_and_then_needs_no_code(data_dir, tmp_path):
  """Another process, without our builder, reads the same; so does its folder.

  And neither TFDS nor we import TensorFlow on the way.
  """
  folder = copied(data_dir, tmp_path)
  script = """
import sys
from oneshot_dp.configs import extract_config
from oneshot_dp.extract.sources.open_source import open_source
for data_dir in sys.argv[1:]:
  where = extract_config.TfdsSource(
    name="oneshot_pets/plain", data_dir=data_dir)
  opened = open_source(where, "train")
  print(len(opened), opened.name, opened.version, opened[7].label)
assert "tensorflow_datasets" in sys.modules
assert "tensorflow" not in sys.modules
"""
  lines = python(script, tmp_path, folder).splitlines()
  assert lines == [f"{NUM_TRAIN} oneshot_pets/plain 1.2.3 {7 % 3}"] * 2


@pytest.mark.parametrize(
  "name", ["oneshot_pets", "oneshot_pets/plain:1.2.3", "oneshot_pets:1.*.*"]
)
def test_data_dir_may_be_the_prepared_folder(data_dir, tmp_path, name):
  config = extract_config.TfdsSource(
    name=name, data_dir=str(copied(data_dir, tmp_path))
  )
  assert open_source(config, "train")[7].image == png(7)


@pytest.mark.parametrize(
  "name", ["mnist", "oneshot_pets/keys", "oneshot_pets/plain:2.0.0"]
)
def test_prepared_folder_of_another_is_refused(data_dir, tmp_path, name):
  config = extract_config.TfdsSource(
    name=name, data_dir=str(copied(data_dir, tmp_path))
  )
  with refused(r"holds oneshot_pets/plain/1\.2\.3,"):
    open_source(config, "train")


def test_keys_choose_among_several_features(data_dir):
  opened = open_source(
    pets(data_dir, "keys", image_key="right", label_key="mood"), "train"
  )
  assert opened.class_names == ("calm", "cross")
  assert (opened[3].image, opened[3].label) == (png(197), 1)


def test_a_mask_is_not_the_image_and_numbers_are_names(data_dir):
  opened = open_source(pets(data_dir, "masked"), "train")
  assert opened[3].image == png(3)
  assert opened.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
  ("name", "keys", "message"),
  [
    ("keys", {}, "image_key must be set: choose from left, right"),
    ("keys", {"image_key": "up"}, "image_key='up' is not one .* left, right"),
    ("keys", LEFT, "label_key must be set: choose from species, mood"),
    ("keys", LEFT | {"label_key": "weight"}, "'weight' is not .* mood"),
    ("no_image", {}, r"no Image .* text \(Text\), label \(ClassLabel\)"),
    ("integer_label", {}, r"no ClassLabel .* label \(Scalar\): the classes"),
    ("nameless_label", {}, "no ClassLabel with its classes"),
    ("deep", {}, "'image' is uint16"),
  ],
)
def test_features_that_cannot_be_chosen(tmp_path, name, keys, message):
  # Only the metadata matters here, and TFDS cannot write all of the examples
  # without TensorFlow.
  builder = OneshotPets(config=name, data_dir=str(tmp_path))
  builder.info.set_file_format("array_record", override=True)
  folder = pathlib.Path(builder.data_dir)
  folder.mkdir(parents=True)
  builder.info.write_to_directory(folder)
  with refused(message):
    open_source(pets(str(tmp_path), name, **keys), "train")


def test_unlabelled_examples_are_refused_when_read(data_dir):
  opened = open_source(pets(data_dir, "unlabelled"), "test")
  with refused(r"test\[2\] has a label that is none"):
    opened[2]


@pytest.mark.parametrize(
  ("split", "message"),
  [
    ("validation", r"which has train \(40\), test \(6\)"),
    ("train[:x]", "Error parsing split"),
    ("train[:1000]", "incompatible with 40 examples"),
    ("train[:0]", "has no examples"),
    ("train[7:3]", "has no examples"),
  ],
)
def test_unknown_split_lists_the_splits(data_dir, split, message):
  with refused(message) as caught:
    open_source(pets(data_dir), split)
  assert "train (40), test (6)" in str(caught.value)


@pytest.mark.parametrize(
  ("name", "hint"),
  [
    ("cifar11", r"Did you mean cifar10.*\?"),
    ("oneshot_pet", r"Did you mean oneshot_pets.*\?"),
    ("only_on_disc", "Did you mean only_on_disk"),
    ("mnist:1.0.0", "cannot be loaded at version 1.0.0, only: "),
    ("oneshot_pets/tame", "BuilderConfig tame not found"),
    ("../pets", "Parsing builder name string"),
    ("", "Parsing builder name string"),
  ],
)
def test_unknown_name_names_its_neighbours(tmp_path, name, hint):
  (tmp_path / "only_on_disk").mkdir()
  config = extract_config.TfdsSource(name=name, data_dir=str(tmp_path))
  with refused(hint) as caught:
    open_source(config, "train")
  assert repr(name) in str(caught.value)
  assert len(str(caught.value)) < 600


@pytest.mark.parametrize("file_format", ["tfrecord", "riegeli"])
def test_other_formats_say_how_to_prepare_it(data_dir, tmp_path, file_format):
  edit_info(copied(data_dir, tmp_path), fileFormat=file_format)
  with refused(f"prepared as {file_format}") as caught:
    open_source(pets(str(tmp_path)), "train")
  # The line that it says must work as it stands.
  line = str(caught.value).split("run ")[1].split(" with another")[0]
  folder = str(tmp_path / "again")
  eval(line, {"tfds": tfds, "FOLDER": folder})
  assert open_source(pets(folder), "train")[7].image == png(7)


def test_other_formats_without_the_code(data_dir, tmp_path):
  folder = copied(data_dir, tmp_path)
  edit_info(folder, fileFormat="tfrecord", name="nobody_knows")
  config = extract_config.TfdsSource(name="nobody_knows", data_dir=str(folder))
  with refused("tfds convert_format --dataset_version"):
    open_source(config, "train")


def test_failed_preparation_keeps_the_reason(data_dir):
  for _ in range(2):  # And leaves nothing behind that looks prepared.
    with pytest.raises(RunError) as caught:
      open_source(pets(data_dir, "offline"), "train")
    assert "no route to images.example.org" in str(caught.value)
    assert "oneshot_pets/offline/1.2.3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unfinished_folder_is_named(data_dir, tmp_path):
  (copied(data_dir, tmp_path) / "dataset_info.json").unlink()
  with refused(r"no dataset_info\.json"):
    open_source(pets(str(tmp_path)), "train")


def test_a_lost_shard_is_named_before_and_after_the_listing(data_dir, tmp_path):
  (shard,) = copied(data_dir, tmp_path).glob("*-train.array_record-*")
  opened = open_source(pets(str(tmp_path)), "train")
  shard.unlink()
  with refused(r"train\[3\] cannot be read: .*open", RunError):
    opened[3]
  with refused(rf"{shard.name}' cannot be read", RunError):
    open_source(pets(str(tmp_path)), "train", opened.listing)


def test_other_files_than_those_listed_are_refused(data_dir):
  listing = open_source(pets(data_dir), "train").listing
  assert open_source(pets(data_dir), "train", listing).listing == listing
  other = listing.replace(b" ", b"1 ", 1)  # another size
  with refused("is not here what it was where the job", RunError):
    open_source(pets(data_dir), "train", other)


def test_eight_threads_read_what_one_reads(data_dir):
  indices = random.Random(0).choices(range(NUM_TRAIN), k=500)
  opened = open_source(pets(data_dir), "train")

  def read(index: int) -> tuple[int, object, int]:
    found = opened[index]
    return found.example_id, found.image, found.label

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(read, indices))
  assert found == [(i, png(i), i % 3) for i in indices]


@pytest.mark.parametrize("index", [-1, NUM_TEST])
def test_index_outside_the_split(data_dir, index):
  with pytest.raises(IndexError, match=f"{index} is not in"):
    open_source(pets(data_dir), "test")[index]


@pytest.mark.parametrize(
  "split", ["train+train", "train[:60%]+train[40%:]", "all+test", "test+all"]
)
def test_no_example_is_read_twice(data_dir, split):
  with refused("may read an example twice"):
    open_source(pets(data_dir), split)


def test_whose_an_example_is(data_dir):
  keys = LEFT | {"label_key": "mood"}
  config = pets(data_dir, "keys", **keys, unit_key="owner")
  found = open_source(config, "train")
  assert found.privacy_unit == "owner"
  units = [found[row].unit_id for row in range(NUM_TRAIN)]
  assert units == [row // 4 - 1 for row in range(NUM_TRAIN)]
  assert type(units[0]) is int
  plain = open_source(pets(data_dir, "keys", **keys), "train")
  assert plain.privacy_unit == "example"
  assert plain[0].unit_id is None


@pytest.mark.parametrize("key", ["note", "left", "nobody"])
def test_what_is_no_unit(data_dir, key):
  config = pets(data_dir, "keys", **LEFT, label_key="mood", unit_key=key)
  with refused(f"unit_key='{key}' is not an integer"):
    open_source(config, "train")


def test_the_id_is_the_number_in_a_text(data_dir):
  opened = open_source(
    pets(data_dir, "named", id_key="file_name"), "train[10:20]"
  )
  assert opened.id_source == "file_name"
  found = [opened[index] for index in range(10)]
  assert [read.example_id for read in found] == [*range(990, 980, -1)]
  assert [read.image for read in found] == [png(row) for row in range(10, 20)]
  plain = open_source(pets(data_dir, "named"), "train[10:20]")
  assert plain.id_source == "position"
  assert plain[3].example_id == 3


@pytest.mark.parametrize("key", ["label", "image", "nobody"])
def test_what_holds_no_file_names(data_dir, key):
  with refused(f"id_key='{key}' is not a text"):
    open_source(pets(data_dir, "named", id_key=key), "train")


def test_a_text_without_a_number_is_named(data_dir):
  opened = open_source(pets(data_dir, "named", id_key="nickname"), "train")
  assert opened[5].example_id == 9
  with refused(r"\[0\], nickname: 'mouser' does not"):
    opened[0]
