"""Data sets of the Hugging Face Hub, from a Hub on the loopback."""

import pathlib

import numpy as np
import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract import hub
from oneshot_dp.extract.sources.describe import describe_images
from tests.extract import local_hub
from tests.extract.local_hub import Commit
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  encode_png,
  open_dataset,
  reopen_from_listing,
  write_table,
)

# Each has a server of its own.
pytestmark = pytest.mark.slow

ADDRESS = "hf://datasets/owner/pets"
FIRST = "0".zfill(40)
SECOND = "1".zfill(40)
CLASSES = ("cat", "dog", "eel")
SHARDS = {
  "data/train-00000-of-00002.parquet": (0, 1, 2, 0),
  "data/train-00001-of-00002.parquet": (2, 1),
  "data/test-00000-of-00001.parquet": (1, 0, 0),
}


@pytest.fixture
def written(tmp_path) -> pathlib.Path:
  """The files of the data set, as they are in its repository."""
  folder = tmp_path / "written"
  value = 0
  for name, labels in SHARDS.items():
    images = []
    for _ in labels:
      images.append(encode_png(value))
      value += 1
    write_table(folder / name, images, CLASSES, label=list(labels))
  return folder


def read_all(folder: pathlib.Path) -> dict[str, bytes]:
  contents = {"README.md": b"Pets", "assets/logo.png": encode_png(255)}
  for path in folder.rglob("*.parquet"):
    contents[path.relative_to(folder).as_posix()] = path.read_bytes()
  return contents


@pytest.fixture
def dataset(written) -> local_hub.Dataset:
  return local_hub.Dataset("owner/pets", Commit(FIRST, read_all(written)))


@pytest.fixture
def server(tmp_path, monkeypatch, dataset):
  with local_hub.serve_dataset(monkeypatch, tmp_path / "hub", dataset) as made:
    yield made


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("split", ["train", "test"])
def test_dataset_of_the_hub_has_the_rows_of_its_files(written, split):
  files = sorted((written / "data").glob(f"{split}-*.parquet"))
  local = open_dataset(*files)
  source = open_dataset(ADDRESS, split=split)
  assert (source.name, source.split) == ("owner/pets", split)
  assert source.class_names == local.class_names == CLASSES
  np.testing.assert_array_equal(source.labels, local.labels)
  assert len(source) == len(local)
  for index in range(len(local)):
    assert source[index] == local[index]


@pytest.mark.usefixtures("server")
def test_worker_reads_the_hub_from_its_listing_alone():
  source = open_dataset(ADDRESS, split="train")
  assert reopen_from_listing(source)[5] == source[5]


def test_only_the_files_of_the_split_are_downloaded_and_once(server):
  open_dataset(ADDRESS, split="test")
  open_dataset(ADDRESS, split="test")
  downloads = [call for call in server.calls() if call.startswith("GET /data")]
  assert downloads == [
    f"GET /datasets/owner/pets/resolve/{FIRST}/data/test-00000-of-00001.parquet"
  ]


@pytest.mark.usefixtures("server")
def test_files_are_those_of_the_commit_that_is_given(dataset):
  moved = {
    "data/train-00000-of-00001.parquet": dataset.commits[FIRST].files[
      "data/test-00000-of-00001.parquet"
    ]
  }
  dataset.move("main", Commit(SECOND, moved))
  assert len(open_dataset(ADDRESS, split="train")) == 3
  assert len(open_dataset(f"{ADDRESS}@{FIRST}", split="train")) == 6


class MovingDataset(local_hub.Dataset):
  """Its branch moves to a commit without Parquet once files are downloaded."""

  def file(self, revision, name):
    self.move("main", Commit(SECOND, {"README.md": b"Gone"}))
    return super().file(revision, name)


def test_branch_that_moves_meanwhile_is_read_at_one_commit(
  tmp_path, monkeypatch, written
):
  moving = MovingDataset("owner/pets", Commit(FIRST, read_all(written)))
  with local_hub.serve_dataset(monkeypatch, tmp_path / "hub", moving):
    assert len(open_dataset(ADDRESS, split="train")) == 6


@pytest.mark.usefixtures("server")
def test_commit_is_printed(capsys):
  open_dataset(ADDRESS, split="train")
  assert f"2 files of {ADDRESS}@{FIRST}, split train" in capsys.readouterr().err


@pytest.mark.usefixtures("server")
def test_copy_in_parquet_that_the_hub_keeps_is_a_revision(dataset, written):
  data = (written / "data/test-00000-of-00001.parquet").read_bytes()
  files = {"default/train/0000.parquet": data}
  dataset.move("refs/convert/parquet", Commit(SECOND, files))
  source = open_dataset(f"{ADDRESS}@refs/convert/parquet")
  assert (source.split, len(source)) == ("train", 3)


def test_branch_that_moves_meanwhile_is_described_at_one_commit(
  tmp_path, monkeypatch, written
):
  moving = MovingDataset("owner/pets", Commit(FIRST, read_all(written)))
  with local_hub.serve_dataset(monkeypatch, tmp_path / "hub", moving):
    report = describe_images(SourceConfig(location=(ADDRESS,)))
  assert report.faults == []
  assert report.classes.keys() == {"train", "test"}


@pytest.fixture
def configurations(server, dataset, written) -> None:
  """Two configurations in folders, and a file beside them."""
  data = (written / "data/test-00000-of-00001.parquet").read_bytes()
  folders = ("", "large/", "small/", "smaller/")
  files = {f"{folder}train-00000-of-00001.parquet": data for folder in folders}
  dataset.move("main", Commit(SECOND, files))


@pytest.mark.usefixtures("configurations")
def test_configurations_are_refused_with_their_addresses():
  folder = f"{ADDRESS}@{SECOND}/small"
  with refused(rf"several places.*{folder}/\*\.parquet"):
    open_dataset(ADDRESS)


@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize(
  "path", ["small", "small/*.parquet", "*.parquet", "large/train-0*"]
)
def test_folder_or_pattern_chooses_a_configuration(path):
  assert len(hub.find_dataset(f"{ADDRESS}/{path}").paths) == 1
  assert len(open_dataset(f"{ADDRESS}/{path}")) == 3


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
  ("location", "message"),
  [
    ("hf://datasets/owner/none", "not on the Hub, or is private.*auth login"),
    (f"{ADDRESS}@v9", "no such revision"),
    (f"{ADDRESS}/none", "no Parquet files.*refs/convert/parquet"),
    ("hf://owner/pets", "give hf://datasets/OWNER/NAME"),
    ("hf://datasets/pets", "give hf://datasets/OWNER/NAME"),
    (ADDRESS, "--split.*test.*train"),
  ],
)
def test_address_without_a_split_to_read_is_refused(location, message):
  with refused(message):
    open_dataset(location)


@pytest.mark.usefixtures("server")
def test_gated_dataset_is_refused_with_what_to_do(dataset):
  dataset.denied = (403, "GatedRepo")
  with refused(r"is gated: .*hf auth login"):
    open_dataset(ADDRESS, split="train")


def test_hub_out_of_reach_is_one_error(tmp_path, monkeypatch, capfd):
  local_hub.ask_at(monkeypatch, local_hub.NOWHERE)
  with refused("cannot be downloaded: .*on this machine", RunError):
    open_dataset(ADDRESS, split="train")
  assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("server")
def test_every_split_of_the_hub_is_described():
  report = describe_images(SourceConfig(location=(ADDRESS,)))
  assert report.faults == []
  assert report.num_images == 9
  assert report.classes == {
    "train": {"cat": 2, "dog": 2, "eel": 2},
    "test": {"cat": 2, "dog": 1, "eel": 0},
  }


@pytest.mark.usefixtures("server")
def test_images_of_the_hub_that_are_broken_are_named(dataset, tmp_path):
  path = tmp_path / "broken.parquet"
  write_table(path, [b"no image", encode_png()], CLASSES, label=[0, 1])
  dataset.move("main", Commit(SECOND, {"pets.parquet": path.read_bytes()}))
  report = describe_images(SourceConfig(location=(ADDRESS,)))
  (fault,) = report.faults
  assert f"{SECOND}/pets.parquet[0]" in fault
