"""Fields within fields, such as `split` in `meta`, say what plain ones say."""

import json
import pathlib
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from oneshot_dp.pipeline.import_table import import_table
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import open_dataset, write_table, write_tar
from tests.pipeline.vector_tables import D, vectors
from tests.pipeline.vector_tables import parquet as write_vectors

KINDS = ("parquet", "tar")
CLASSES = ("cat", "dog")
IMAGES = [b"a", b"b", b"c"]
SEVERAL = [
  ("meta.split", ["train", "train", "test"], "'test', 'train'"),
  ("info.subset", ["train", None, "val"], "'train', 'val'"),
  ("a.b.is_test", [False, False, True], "0, 1"),
]
PLAIN = [
  ("meta.split", ["train", "train", "train"]),
  ("meta.mood", ["glad", "train", "test"]),
  ("meta.dataset", ["coco", "coco", "pets"]),
]


def nested(name: str, value: Any) -> dict[str, Any]:
  """The object that has a value at a name such as meta.split."""
  for part in reversed(name.split(".")[1:]):
    value = {part: value}
  return value


def write(path: pathlib.Path, name: str, values: list[Any]) -> pathlib.Path:
  """A table of three images, whose column is of objects."""
  objects = [nested(name, value) for value in values]
  columns: dict[str, Any] = {name.split(".")[0]: objects}
  write_table(path, IMAGES, label=[0, 1, 0], **columns)
  return path


@pytest.mark.parametrize(("name", "values", "shown"), SEVERAL)
@pytest.mark.parametrize("kind", KINDS)
def test_an_inner_field_of_several_splits_is_refused(
  tmp_path, kind, name, values, shown
):
  path = write(tmp_path / f"pets.{kind}", name, values)

  with refused(f"several splits in its column '{name}' .{shown}"):
    open_dataset(path, class_names=CLASSES)


@pytest.mark.parametrize(("name", "values"), PLAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_other_inner_fields_say_nothing(tmp_path, capsys, kind, name, values):
  path = write(tmp_path / f"pets-train.{kind}", name, values)

  assert len(open_dataset(path, class_names=CLASSES)) == 3
  assert "WARNING" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_inner_folds_are_warned_of(tmp_path, capsys, kind):
  path = write(tmp_path / f"pets.{kind}", "meta.fold", [1, 2, 3])

  open_dataset(path, class_names=CLASSES)

  assert "column 'meta.fold' has several values" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_inner_owners_are_warned_of(tmp_path, capsys, kind):
  path = write(tmp_path / f"pets.{kind}", "meta.patient_id", [1, 2, 3])

  open_dataset(path, class_names=CLASSES)

  warning = capsys.readouterr().err
  assert "'meta.patient_id' not used" in warning
  assert "as a field or column of its own for --units" in warning


def test_an_inner_field_of_a_tar_can_be_the_label(tmp_path):
  members: dict[str, bytes | None] = {}
  for i in (0, 1):
    members[f"{i}.png"] = b"image"
    members[f"{i}.json"] = json.dumps({"meta": {"label": i}}).encode()
  write_tar(tmp_path / "pets.tar", members)

  source = open_dataset(
    tmp_path / "pets.tar", class_names=CLASSES, label="meta.label"
  )

  assert list(source.labels) == [0, 1]


@pytest.mark.parametrize(("name", "values", "shown"), SEVERAL[:2])
def test_import_of_an_inner_field_of_several_splits_is_refused(
  tmp_path, name, values, shown
):
  embedding, label = vectors()
  objects = [nested(name, value) for value in values]
  file = write_vectors(
    tmp_path / "v.parquet",
    list(embedding[:3]),
    label[:3],
    **{name.split(".")[0]: objects},
  )

  with refused(f"several splits in its column '{name}' .{shown}"):
    import_table(file, tmp_path / "c", class_names=("a", "b", "c"))


def test_import_of_inner_owners_is_warned_of(tmp_path):
  rows = [{"user": 1}, {"user": 2}]
  table = pa.table({"embedding": [[1.0] * D] * 2, "label": [0, 1], "m": rows})
  parquet.write_table(table, tmp_path / "v.parquet")

  with pytest.warns(UserWarning, match=r"'m\.user' not used"):
    import_table(tmp_path / "v.parquet", tmp_path / "c", class_names=CLASSES)
