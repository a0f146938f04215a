import hashlib
import io
import pathlib
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn import datasets

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.example import Example
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.refusals import refused


def below(folder: pathlib.Path) -> extract_config.TfdsSource:
  return extract_config.TfdsSource(name="sklearn_digits", data_dir=str(folder))


@pytest.fixture(scope="module")
def config(
  tmp_path_factory: pytest.TempPathFactory,
) -> extract_config.TfdsSource:
  digits = below(tmp_path_factory.mktemp("digits"))
  open_source(digits, "train")
  return digits


def hashes(folder: str) -> dict[str, str]:
  return {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
    for path in pathlib.Path(folder).rglob("*")
    if path.is_file()
  }


def pixels(example: Example) -> np.ndarray:
  assert isinstance(example.image, bytes)
  return np.asarray(Image.open(io.BytesIO(example.image)))


def test_every_row_is_in_one_split_and_every_fifth_is_for_testing(config):
  table = datasets.load_digits()
  rows = np.arange(len(table.target))
  for split, expected, count in (
    ("train", rows[rows % 5 != 0], 1437),
    ("test", rows[rows % 5 == 0], 360),
  ):
    opened = open_source(config, split)
    assert len(opened) == len(expected) == count
    assert opened.name == "sklearn_digits"
    assert opened.class_names == tuple("0123456789")
    for index, row in enumerate(expected):
      example = opened[index]
      np.testing.assert_array_equal(
        pixels(example),
        np.rint(table.images[row] / 16 * 255).astype(np.uint8),
        strict=True,
      )
      assert (example.example_id, example.label) == (index, table.target[row])


def test_the_same_files_every_time(config, tmp_path):
  assert config.data_dir is not None
  open_source(below(tmp_path / "new" / "folder"), "test")
  assert hashes(str(tmp_path)) == hashes(config.data_dir)


def test_folder_that_cannot_be_made(tmp_path):
  (tmp_path / "file").write_text("in the way")
  with refused(r"could not download and prepare .*file", RunError):
    open_source(below(tmp_path / "file"), "train")


def test_without_scikit_learn(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "sklearn", None)
  with refused(r"pip install 'oneshot-dp\[demo\]'"):
    open_source(below(tmp_path), "train")
  assert not list(tmp_path.iterdir())
