"""TFDS data sets as the real library prepares them, read without TensorFlow."""

import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python import array_record_module

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.job.listing import encode_header, listing_digest
from oneshot_dp.extract.sources.source import Example
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  encode_png,
  open_dataset,
  reopen_from_listing,
  units_of,
)

CLASSES = ("cat", "dog", "eel")
SPLITS = {"train": range(40), "test": range(40, 46)}
F = tfds.features
IMAGE = F.Image(shape=(4, 5, 3))
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
    "note": F.Text(),
    "is_test": F.Scalar(dtype=np.bool_),
    "meta": F.FeaturesDict({"split": F.Text(), "user": F.Text()}),
  },
  "no_label": {
    "image": IMAGE,
    "label": F.Scalar(dtype=np.int64),
    "nameless": F.ClassLabel(),
  },
  "no_image": {
    "text": F.Text(),
    "mask": F.LabeledImage(labels=2, shape=(4, 5, 1)),
    "image": F.Image(shape=(4, 5, 1), dtype=np.uint16),
    "label": LABEL,
  },
  "unlabeled": PLAIN | {"label": F.ClassLabel(num_classes=3)},
  "offline": PLAIN,
}


def example(name: str, row: int) -> dict[str, Any]:
  if name == "keys":
    sides = {"left": encode_png(row), "right": encode_png(200 - row)}
    rest = {
      "mood": row % 2,
      "owner": row // 4 - 1,
      "note": "purrs",
      "is_test": row > 30,
      "meta": {"split": "train", "user": "ann"},
    }
    return sides | {"species": row % 3} | rest
  return {
    "image": encode_png(row),
    "label": -1 if name == "unlabeled" else row % 3,
  }


class OneshotPets(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.2.3")
  BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=n) for n in FEATURES)

  def _info(self) -> tfds.core.DatasetInfo:
    features = F.FeaturesDict(FEATURES[self.builder_config.name])
    how = {"features": features, "disable_shuffling": True}
    return tfds.core.DatasetInfo(builder=self, **how)

  def _split_generators(self, dl_manager: object) -> dict[str, Any]:
    if self.builder_config.name == "offline":
      raise ConnectionError("no route\nto   images.example.org")
    return {k: self._generate_examples(rows) for k, rows in SPLITS.items()}

  def _generate_examples(self, rows: range) -> Iterator[Any]:
    for row in rows:
      yield row, example(self.builder_config.name, row)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> pathlib.Path:
  return tmp_path_factory.mktemp("tfds")


def pets(data_dir: Any, name: str = "plain", **settings: Any) -> Any:
  settings = {"split": "train", "data_dir": str(data_dir)} | settings
  return open_dataset(f"tfds:oneshot_pets/{name}", **settings)


@pytest.fixture
def copied(data_dir, tmp_path) -> pathlib.Path:
  """A copy of the prepared plain data set, below `tmp_path`, to be spoilt."""
  pets(data_dir)
  version = pathlib.Path("oneshot_pets", "plain", "1.2.3")
  return shutil.copytree(data_dir / version, tmp_path / version)


def test_reads_file_bytes_and_labels_of_each_split(data_dir):
  for split, rows in SPLITS.items():
    found = pets(data_dir, split=split)
    assert (found.name, found.split) == ("oneshot_pets/plain", split)
    assert (found.class_names, found.unit) == (CLASSES, "example")
    expected = [Example(row % 3, encode_png(row)) for row in rows]
    indices = [i * 7 % len(rows) for i in range(300)]
    for source in (found, reopen_from_listing(found)):
      assert [*source] == expected
      with concurrent.futures.ThreadPoolExecutor(8) as pool:
        read = [*pool.map(source.__getitem__, indices)]
      assert read == [expected[i] for i in indices]
      assert source.display_path(5) == f"oneshot_pets/plain/{split}[5]"
    for index in (-1, len(rows)):
      with pytest.raises(IndexError, match=f"{index} is not in"):
        found[index]
  assert listing_digest(pets(data_dir)) == listing_digest(pets(data_dir))
  for split, said in (
    (None, "give --split, one of 'test', 'train'"),
    ("train[:10]", "is none of 'test', 'train'"),
    ("train[:60%]", "parts are chosen when a cache is read"),
  ):
    with refused(said):
      pets(data_dir, split=split)


@pytest.mark.slow
def test_prepared_once_it_needs_no_code(copied, tmp_path):
  """Another process, without our builder or TensorFlow, reads the same."""
  listing = tmp_path / "listing"
  listing.write_bytes(encode_header(pets(tmp_path)))
  script = """
import pathlib, sys
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.job.listing import decode_header
from oneshot_dp.extract.sources.open_source import open_source
folder, listing = map(pathlib.Path, sys.argv[1:])
place = SourceConfig(location=(f"tfds:{folder}",), split="train")
for found in (open_source(place), decode_header(listing.read_bytes())):
  print(len(found), found.name, found[7].label)
assert "tensorflow" not in sys.modules
"""
  command = [sys.executable, "-c", script, copied, listing]
  said = subprocess.run(command, check=True, capture_output=True, text=True)
  assert said.stdout.splitlines() == ["40 oneshot_pets/plain 1"] * 2


def test_flags_choose_among_several_features(data_dir):
  found = pets(data_dir, "keys", image="right", label="mood", units="owner")
  assert found.class_names == ("calm", "cross")
  assert (found[3].image, found[3].label) == (encode_png(197), 1)
  assert found.unit == "owner"
  units = units_of(found)
  assert units == [row // 4 - 1 for row in SPLITS["train"]]
  assert type(units[0]) is int
  found = pets(data_dir, "unlabeled", split="test")
  assert found.class_names == ("0", "1", "2")
  with refused(r"test\[2\] has a label that is none"):
    found[2]


def test_a_feature_that_may_flag_test_rows_is_warned_of(data_dir, capsys):
  pets(data_dir, "keys", image="right", label="mood", units="owner")

  message = capsys.readouterr().err
  assert "'is_test', 'meta.split' not used: all rows are read as" in message


def test_a_label_that_is_called_otherwise_is_warned_of(copied, capsys):
  def rename(features):
    kinds = features["featuresDict"]["features"]
    kinds["license"] = kinds.pop("label")

  edit_json(copied / "features.json", rename)
  (copied / "label.labels.txt").rename(copied / "license.labels.txt")
  warning = "the labels are 'license', as nothing else has classes with names"

  open_dataset(f"tfds:{copied}", split="train")
  assert warning in capsys.readouterr().err

  open_dataset(f"tfds:{copied}", split="train", label="license")
  assert "labels are" not in capsys.readouterr().err


LEFT = {"image": "left"}
MOOD = LEFT | {"label": "mood"}


@pytest.mark.parametrize(
  ("name", "keys", "message"),
  [
    ("keys", {}, "give --image, one of 'left', 'right'"),
    ("keys", LEFT | {"label": "note"}, "'note' is none of 'species', 'mood'"),
    ("no_image", {}, "nothing that can be its --image"),
    ("no_label", {}, "nothing that can be its --label"),
    ("keys", MOOD | {"units": "note"}, "'note' is none"),
    ("keys", MOOD | {"units": "example"}, "short public one"),
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
    pets(tmp_path, name, **keys)


def test_unknown_names_and_failed_preparation_are_one_line(tmp_path):
  for _ in range(2):  # And leaves nothing behind that looks prepared.
    with refused("offline.* no route to images.example.org", RunError):
      pets(tmp_path, "offline")
  for name in (
    *("cifar11", "mnist:1.0.0", "oneshot_pets/tame", "../pets", "", "a\u202eb"),
    *("oneshot_pets/plain:9.9.9", "/nowhere"),
  ):
    with refused(".") as caught:
      open_dataset(f"tfds:{name}", data_dir=str(tmp_path))
    assert len(str(caught.value)) < 600


def test_other_formats_and_unfinished_folders_say_what_to_do(copied, tmp_path):
  path = copied / "dataset_info.json"
  info = json.loads(path.read_text()) | {"fileFormat": "tfrecord"}
  path.write_text(json.dumps(info))
  with refused("prepared as tfrecord.*tfds convert_format --dataset_v"):
    pets(tmp_path)
  path.unlink()
  with refused(r"has no dataset_info\.json"):
    pets(tmp_path)


def edit_json(path, change):
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))


def state_rows(copied, rows):
  def change(info):
    info["splits"][0]["shardLengths"] = [str(rows)]

  edit_json(copied / "dataset_info.json", change)


def test_a_prepared_folder_of_any_name_is_read(copied, tmp_path):
  folder = copied.rename(tmp_path / "my_pets")

  assert len(open_dataset(f"tfds:{folder}", split="train")) == 40


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_a_folder_without_metadata_is_said_to_lack_them(copied, name):
  (copied / name).unlink()

  with refused(f"not a data set that TFDS prepared: it has no {name}"):
    open_dataset(f"tfds:{copied}", split="train")


def test_a_folder_of_damaged_metadata_is_refused_as_input(copied):
  (copied / "dataset_info.json").write_text("{")

  with refused("is not a readable data set of TFDS: .*JSON"):
    open_dataset(f"tfds:{copied}", split="train")


@pytest.mark.parametrize("rows", [30, 50, 9 * 10**18])
def test_a_file_of_other_than_the_stated_records_is_refused(copied, rows):
  state_rows(copied, rows)

  with refused(f"has 40 records, and dataset_info.json states {rows:,}"):
    open_dataset(f"tfds:{copied}", split="train")


@pytest.mark.parametrize("template", ["{DATASET.__class__}", "{NOTHING}", "}"])
def test_a_template_of_names_that_is_not_plain_is_refused(copied, template):
  def change(info):
    info["splits"][0]["filepathTemplate"] = template

  edit_json(copied / "dataset_info.json", change)

  with refused("is damaged: a name of files|not a readable data set of TFDS"):
    open_dataset(f"tfds:{copied}", split="train")


@pytest.mark.parametrize("key", ["image", "label"])
def test_a_record_without_a_stated_feature_is_refused(copied, key):
  def rename(features):
    kinds = features["featuresDict"]["features"]
    kinds["other"] = kinds.pop(key)

  edit_json(copied / "features.json", rename)
  source = open_dataset(f"tfds:{copied}", split="train", **{key: "other"})

  with refused(r"train\[3\]' is not a readable example of TFDS: .*'other'"):
    _ = source[3]


def test_metadata_without_a_name_are_refused(copied):
  edit_json(copied / "dataset_info.json", lambda info: info.pop("name"))

  with refused("is not a readable data set of TFDS"):
    open_dataset(f"tfds:{copied}", split="train")


@pytest.mark.parametrize("place", ["..", "/somewhere"])
def test_a_file_outside_of_the_prepared_folder_is_refused(copied, place):
  def change(info):
    template = info["splits"][0]["filepathTemplate"]
    info["splits"][0]["filepathTemplate"] = f"{place}/{template}"

  edit_json(copied / "dataset_info.json", change)

  with refused(f"states a file that is not in the folder, '.*{place}/"):
    open_dataset(f"tfds:{copied}", split="train")


def test_a_split_of_a_negative_number_of_rows_is_none(copied):
  state_rows(copied, -4)

  with refused("'train' is none of 'test'"):
    open_dataset(f"tfds:{copied}", split="train")


def test_more_classes_than_anybody_has_are_refused_unnamed(copied):
  def change(features):
    label = features["featuresDict"]["features"]["label"]
    label["classLabel"]["numClasses"] = str(9 * 10**18)

  edit_json(copied / "features.json", change)
  (copied / "label.labels.txt").unlink()

  with refused("makes 9000000000000000000 classes: at most 1000000"):
    open_dataset(f"tfds:{copied}", split="train")


def test_metadata_of_a_named_data_set_that_are_a_device_are_refused(copied):
  path = copied / "label.labels.txt"
  path.unlink()
  path.symlink_to("/dev/zero")

  with refused("label.labels.txt cannot be read: it is not a regular file"):
    pets(copied.parents[2])


def test_metadata_of_millions_of_shards_are_refused_unparsed(copied, tmp_path):
  path = copied / "dataset_info.json"
  info = json.loads(path.read_text())
  info["splits"][0]["shardLengths"] = ["1"] * 300_000
  path.write_text(json.dumps(info))

  with refused(r"dataset_info\.json cannot .* are more than 1,048,576"):
    open_dataset(f"tfds:{copied}", split="train")


def test_a_lost_or_other_shard_is_named(copied, tmp_path):
  (shard,) = copied.glob("*-train.array_record-*")
  found = pets(tmp_path)
  shard.write_bytes(shard.read_bytes() + b"\0")
  with refused("is not here what it was where the job", RunError):
    reopen_from_listing(found)[3]
  shard.unlink()
  with refused(rf"{shard.name}' cannot be read", RunError):
    reopen_from_listing(found)[3]
  with refused(r"train\[3\] cannot be read: .*No such file", RunError):
    found[3]


def name_a_class(key, name):
  """An edit of features.json: one more feature, of a class of this name."""

  def change(features):
    features["featuresDict"]["features"]["z"] = {key: name, "text": {}}

  return change


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name"])
def test_features_of_foreign_classes_are_refused_unimported(copied, key):
  edit_json(copied / "features.json", name_a_class(key, "antigravity.X"))

  with refused(r"features\.json.* has features of 'antigravity\.X', Python"):
    open_dataset(f"tfds:{copied}", split="train")

  assert "antigravity" not in sys.modules


def test_foreign_classes_of_a_named_data_set_are_refused(copied):
  edit_json(copied / "features.json", name_a_class("pythonClassName", "this.X"))

  with refused("has features of 'this.X', Python code"):
    pets(copied.parents[2])


def test_foreign_classes_in_features_of_older_versions_are_refused(copied):
  inner = json.dumps({"type": "this.X", "content": {}})
  content = {"jsonFeature": {"json": inner}}
  (copied / "features.json").write_text(json.dumps(content))

  with refused("has features of 'this.X', Python code"):
    open_dataset(f"tfds:{copied}", split="train")


def test_names_of_files_of_any_width_are_refused(copied):
  def change(info):
    info["splits"][0]["filepathTemplate"] = "{SPLIT:>999999999}"

  edit_json(copied / "dataset_info.json", change)

  with refused("is damaged: a name of files is '{SPLIT:>999999999}'"):
    open_dataset(f"tfds:{copied}", split="train")


def test_a_config_that_could_forge_lines_is_refused(copied):
  def change(info):
    info["configName"] = "plain\x1b[2J"

  edit_json(copied / "dataset_info.json", change)

  with refused("contains control characters"):
    open_dataset(f"tfds:{copied}", split="train")


def write_train_records(copied, records):
  """Writes these records in place of the training split's."""
  (shard,) = copied.glob("*-train.array_record-*")
  writer = array_record_module.ArrayRecordWriter(str(shard), "group_size:1")
  for record in records:
    writer.write(record)
  writer.close()
  state_rows(copied, len(records))


def test_a_record_that_unfolds_to_far_more_than_an_image_is_refused(copied):
  write_train_records(copied, [b"x", bytes(1 << 27)])
  source = open_dataset(f"tfds:{copied}", split="train")

  tracemalloc.start()
  with refused("a chunk unfolds from .* bytes to 134,217,728, more than"):
    source[0]
  _, most_bytes = tracemalloc.get_traced_memory()
  tracemalloc.stop()

  assert most_bytes < 1 << 24


def test_a_record_that_is_no_example_is_one_line(copied):
  write_train_records(copied, [b"\xff no example"])

  with refused(r"train\[0\]' is not a readable example of TFDS"):
    open_dataset(f"tfds:{copied}", split="train")[0]
