"""Rows of Parquet files and tars as images with labels and owners."""

import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.job.listing import listing_digest
from oneshot_dp.extract.sources.parquet import image_cells
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  images_of,
  labels_of,
  open_dataset,
  reopen_from_listing,
  units_of,
  write_table,
)

KINDS = ("parquet", "tar")
CLASSES = ("cat", "dog", "owl")
N = 70
LABELS: list[int] = []
PATIENTS: list[str] = []  # one of four images each
IMAGES: list[bytes] = []
for _i in range(N):
  LABELS.append(_i % 3)
  PATIENTS.append(f"p{_i // 4}")
  IMAGES.append(b"image %d" % _i)
P0 = 0x8D7E9AAAB58B6FF4 >> 1
"""The first 63 bits of `printf p0 | b2sum -l 64`."""


def write_split_files(folder: pathlib.Path, kind: str) -> pathlib.Path:
  """Three files of a split `train`, with groups that do not end together."""
  name = "x-train-{}"
  if kind == "parquet":
    name = "data/train-0000{}-of-00003"
  for i, (start, end) in enumerate([(0, 30), (30, 31), (31, N)]):
    write_table(
      folder / f"{name.format(i)}.{kind}",
      IMAGES[start:end],
      CLASSES,
      label=LABELS[start:end],
      patient=PATIENTS[start:end],
    )
  return folder


def open_table_source(path: pathlib.Path, kind: str, **config: Any) -> Any:
  """Opens tables; the names of the classes are in Parquet files already."""
  if kind == "tar":
    config = {"class_names": CLASSES} | config
  return open_dataset(path, **config)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_a_split_say_their_names_and_classes(tmp_path, kind):
  folder = write_split_files(tmp_path / "pets", kind)

  source = open_table_source(folder, kind, units="patient")

  assert (source.name, source.split) == ("pets", "train")
  assert (source.class_names, source.unit) == (CLASSES, "patient")


@pytest.fixture(params=["listed", "reopened"])
def reopen(request):
  """The source as it was listed, or as a worker of a job opens it again."""
  if request.param == "reopened":
    return reopen_from_listing
  return lambda source: source


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_a_split_have_every_row_once_in_order(tmp_path, kind, reopen):
  folder = write_split_files(tmp_path / "pets", kind)

  source = reopen(open_table_source(folder, kind, units="patient"))

  assert labels_of(source) == LABELS
  assert images_of(source) == IMAGES


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_name_are_one_unit_in_all_files(tmp_path, kind, reopen):
  folder = write_split_files(tmp_path / "pets", kind)

  source = reopen(open_table_source(folder, kind, units="patient"))

  unit_ids = units_of(source)
  assert unit_ids[0] == P0
  assert len(set(unit_ids)) == len(set(PATIENTS))
  for i, unit_id in enumerate(unit_ids):
    assert unit_id == unit_ids[i // 4 * 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_named_by_its_file_and_its_place_there(tmp_path, kind):
  folder = write_split_files(tmp_path / "pets", kind)
  source = open_table_source(folder, kind)
  assert re.fullmatch(rf"{tmp_path}.*\[0\]", source.display_path(31))
  with pytest.raises(IndexError):
    source[N]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_threads_read_the_same_images_in_any_order(tmp_path, kind):
  source = open_table_source(write_split_files(tmp_path, kind), kind)
  # 37 and N have no common divisor: every row, far from the one before.
  indices = [i * 37 % N for i in range(300)]

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    images = list(pool.map(lambda i: source[i].image, indices))
  assert images == [IMAGES[i] for i in indices]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
  ("names", "labels", "indices"),
  [
    (("2", "1", "0"), ["2", "1", "2", "1"], [0, 1, 0, 1]),
    (("cat", "dog", "owl"), ["2", "cat", "1", "0"], [2, 0, 1, 0]),
  ],
)
def test_a_string_is_the_name_of_a_class_or_else_its_number(
  tmp_path, kind, names, labels, indices
):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES[:4], label=labels)
  source = open_dataset(path, class_names=names)
  assert labels_of(source) == indices


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_units_as_they_are(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES[:3], label=[0, 0, 0], who=[-5, 2**40, 0])
  source = open_dataset(path, num_classes=1, units="who")
  assert units_of(source) == [-5, 2**40, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_string_that_names_no_class_is_refused_by_row(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES[:4], label=["1", "0", "2", "0"])
  with refused(r"rows whose label .*\[1\].*\[3\]"):
    open_dataset(path, class_names=("1", "2", "3"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
  ("columns", "config", "message"),
  [
    ({"label": [0, 3, -1]}, {}, r"rows whose label .* 3 classes"),
    ({"label": ["cat", "dog", "cow"]}, {}, "rows whose label"),
    ({"patient": ["a", None, " "]}, {}, "images without patient"),
    ({"patient": [1, None, 2]}, {}, "images without patient"),
    ({"patient": [1.5, 2.0, 2.0]}, {}, "'patient'.* must be .*integers"),
    ({"patient": [[1], [2], [3]]}, {}, "'patient'.* must be .*integers"),
    ({}, {"num_classes": 4}, "names 3 classes .* leave --class-names"),
    ({}, {"units": "example"}, "must be a short public one"),
    ({}, {"units": "nobody"}, "nobody"),
    ({}, {"image": "jpg"}, "--image( 'jpg' is none of)?"),
    ({}, {"label": "species"}, "species"),
  ],
)
def test_a_column_that_does_not_fit_is_refused_in_one_line(
  tmp_path, kind, columns, config, message
):
  sound = {"label": [0, 1, 2], "patient": ["a", "b", "a"]}
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES[:3], CLASSES, **sound | columns)
  with refused(message):
    open_table_source(path, kind, **{"units": "patient"} | config)


@pytest.mark.parametrize(
  ("table", "message"),
  [
    ({"image": [["x"]], "label": [0]}, "nothing that can be its --image"),
    ({"a": [b"x"], "b": [b"y"]}, "give --image, one of 'a', 'b'"),
    ({"a": [b"x"], "y": [0]}, "--label 'label' is none of 'y'"),
    ({"image": [b"x"], "label": [0.5]}, "'double': it must be integers"),
    ({"image": [b"x"], "label": [datetime.datetime(1, 1, 1)]}, "timestamp"),
    ({"image": [b"x"], "label\x1b": [0]}, r"none of 'label\\x1b'"),
  ],
)
def test_a_missing_column_is_refused_with_those_there_are(
  tmp_path, table, message
):
  pyarrow.parquet.write_table(pa.table(table), tmp_path / "x.parquet")
  with refused(message):
    open_dataset(tmp_path / "x.parquet")


def test_a_table_without_rows_is_an_empty_source(tmp_path):
  path = tmp_path / "x.parquet"
  write_table(path, [], CLASSES, label=pa.array([], "int64"))
  assert len(open_dataset(path)) == 0


def test_a_null_is_an_image_without_bytes(tmp_path):
  """It is then one that cannot be decoded, by name."""
  path = tmp_path / "x.parquet"
  write_table(path, [None, b"x"], CLASSES, label=[0, 1])
  assert images_of(open_dataset(path)) == [b"", b"x"]


def test_a_table_beside_a_folder_is_refused(tmp_path):
  write_table(tmp_path / "x.parquet", [b"x"], CLASSES, label=[0])
  with refused("give a folder that has a folder of images .* each once"):
    open_dataset(tmp_path / "x.parquet", tmp_path)


def test_files_with_the_classes_in_another_order_are_refused(tmp_path):
  write_table(tmp_path / "x.parquet", [b"x"], CLASSES, label=[0])
  write_table(tmp_path / "z.parquet", [b"x"], CLASSES[::-1], label=[0])
  with refused("z.parquet' defines different classes"):
    open_dataset(tmp_path)


def read_as_a_job(source: Any) -> list[bytes]:
  """Eight threads, each at a place of its own, as in an engine's worker."""
  turns: list[int] = []
  for step in range(4):
    for place in range(8):
      turns.append(8 * place + step)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    images = list(pool.map(lambda i: source[i].image, turns))
  assert images == [IMAGES[i] for i in turns]
  return images


@pytest.fixture
def group_reads(monkeypatch):
  """Row groups, in the order in which Parquet is asked for them."""
  reads: list[int] = []
  original = pyarrow.parquet.ParquetFile.iter_batches

  def recorded(file, *args, **options):
    reads.extend(options.get("row_groups") or [])
    return original(file, *args, **options)

  monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", recorded)
  image_cells._readers.clear()
  return reads


def test_a_row_group_is_read_once_while_all_fit_in_memory(
  tmp_path, group_reads
):
  read_as_a_job(open_dataset(write_split_files(tmp_path, "parquet")))
  assert len(group_reads) <= 10  # as many as there are


def test_row_groups_are_forgotten_where_they_do_not_fit(
  tmp_path, group_reads, monkeypatch
):
  monkeypatch.setattr(image_cells, "_KEPT_BYTES", 0)
  read_as_a_job(open_dataset(write_split_files(tmp_path, "parquet")))
  assert len(group_reads) > 20
  assert len(image_cells._readers._readers) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["other", "shorter", "empty", "gone"])
def test_a_table_that_changed_since_it_was_listed_is_not_read(
  tmp_path, kind, change
):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES, CLASSES, label=LABELS)
  source = open_table_source(path, kind)
  assert reopen_from_listing(source)[69].image == IMAGES[69]
  data = path.read_bytes()
  if change == "gone":
    path.unlink()
  else:
    length = {"shorter": len(data) // 2, "empty": 0}.get(change, len(data))
    path.write_bytes(data[:length])
    os.utime(path, (0, 0))
  image_cells._readers.clear()  # as in another process
  with refused("cannot be read", RunError):
    reopen_from_listing(source)[3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_another_time_is_another_source(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES, CLASSES, label=LABELS)
  before = listing_digest(open_table_source(path, kind))
  os.utime(path, (0, 0))
  assert listing_digest(open_table_source(path, kind)) != before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_table_that_was_cut_is_refused_when_it_is_listed(
  tmp_path, kind, share
):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES, CLASSES, label=LABELS)
  data = path.read_bytes()
  path.write_bytes(data[: int(len(data) * share)])
  with refused(f"x.{kind}"):
    open_table_source(path, kind)


@pytest.mark.slow
def test_damaged_parquet_is_read_or_refused_in_one_line(tmp_path):
  path = tmp_path / "x.parquet"
  write_table(path, IMAGES[:9], CLASSES, label=LABELS[:9], who=PATIENTS[:9])
  good = path.read_bytes()
  for at in range(0, len(good), 23):
    path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
    with contextlib.suppress(InputError, RunError):
      list(open_dataset(path, units="who"))


@pytest.mark.parametrize(
  # The last is nested deeper than a parser goes.
  "metadata",
  ["[", "[]", '{"info": {"features": 3}}', "".ljust(9999, "[")],
)
def test_metadata_that_names_no_classes_is_passed_over(tmp_path, metadata):
  table = pa.table({"image": [b"x"], "label": [0]})
  table = table.replace_schema_metadata({"huggingface": metadata})
  pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
  assert open_dataset(tmp_path / "x.parquet", num_classes=1)[0].label == 0


def test_a_class_name_with_control_characters_is_refused(tmp_path):
  write_table(tmp_path / "x.parquet", [b"x"], ["a", "a\x1b"], label=[0])
  with refused("control characters"):
    open_dataset(tmp_path / "x.parquet")


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_id_that_no_flag_names_is_refused(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES, CLASSES, label=LABELS, unit_id=PATIENTS)

  with refused("has a unit_id: name it with --units"):
    open_table_source(path, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_owners_that_no_flag_names_is_warned_of(
  tmp_path, kind, capsys
):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES, CLASSES, label=LABELS, patient=PATIENTS)

  open_table_source(path, kind)

  assert "'patient' not used, so each image is" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_owners_that_is_used_is_not_warned_of(
  tmp_path, kind, capsys
):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES, CLASSES, label=LABELS, patient=PATIENTS)

  open_table_source(path, kind, units="patient")

  assert "not used" not in capsys.readouterr().err


def test_a_label_is_read_before_another_column_that_names_its_classes(tmp_path):
  """Of people, such a column may be the sex, and not what is asked for."""
  path = tmp_path / "x.parquet"
  features = {"sex": {"_type": "ClassLabel", "names": ["f", "m"]}}
  noted = {"huggingface": json.dumps({"info": {"features": features}})}
  table = pa.table(
    {"image": IMAGES[:4], "label": [0, 1, 2, 1], "sex": [1, 1, 0, 0]}
  )
  pa.parquet.write_table(table.replace_schema_metadata(noted), path)

  assert labels_of(open_dataset(path, num_classes=3)) == [0, 1, 2, 1]


@pytest.mark.parametrize(
  ("column", "is_warned_of"),
  [("license", True), ("camera", True), ("fine_label", False), ("y", False)],
)
def test_a_sole_class_label_that_is_called_otherwise_is_warned_of_once(
  tmp_path, capsys, column, is_warned_of
):
  features = {column: {"_type": "ClassLabel", "names": ["f", "m"]}}
  noted = {"huggingface": json.dumps({"info": {"features": features}})}
  table = pa.table({"image": IMAGES[:2], column: [0, 1]})
  for name in ("a.parquet", "b.parquet"):
    pa.parquet.write_table(
      table.replace_schema_metadata(noted), tmp_path / name
    )
  warning = f"the labels are '{column}', as nothing else has classes with names"

  open_dataset(tmp_path)
  assert capsys.readouterr().err.count(warning) == int(is_warned_of)

  open_dataset(tmp_path, label=column)
  assert warning not in capsys.readouterr().err


def test_a_file_that_has_gone_since_it_was_listed_is_said_to_be_gone(tmp_path):
  path = tmp_path / "x.tar"
  write_table(path, IMAGES, CLASSES, label=LABELS)
  source = open_table_source(path, "tar")
  path.unlink()

  with refused("cannot be read: it is gone; put it back", RunError):
    _ = source[3]
