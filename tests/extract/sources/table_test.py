"""Rows of Parquet, Arrow and tar files as images with labels and owners."""

import concurrent.futures
import hashlib
import io
import json
import os
import pathlib
import tarfile
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import (
  ExtractConfig,
  TableSource,
  UnlabelledSource,
)
from oneshot_dp.extract.job import job as job_module
from oneshot_dp.extract.job import listing
from oneshot_dp.extract.job.job import run_extraction
from oneshot_dp.extract.sources.example import Source
from oneshot_dp.extract.sources.open_source import open_source
from oneshot_dp.extract.sources.table import examples, recent
from tests.extract.caches import digest
from tests.extract.image_jobs import CLASSES, columns, labels, pixels, table_job
from tests.extract.refusals import refused
from tests.extract.tables import KINDS, png, write_table

N = 70
PATIENTS = [f"p{i // 4}" for i in range(N)]
IMAGES = [b"image %d" % i for i in range(N)]


def written(folder: pathlib.Path, kind: str, **changes) -> pathlib.Path:
  """Three files of a split `train`, with groups that do not end together."""
  places = {"parquet": "data/train-{}-of-00003", "arrow": "train/data-{}-of-3"}
  place = places.get(kind, "pets-train-{}") + f".{kind}"
  known: Any = {"label": labels(N).tolist(), "patient": PATIENTS} | changes
  for i, (start, end) in enumerate([(0, 30), (30, 31), (31, N)]):
    write_table(
      folder / place.format(f"{i:05d}"),
      IMAGES[start:end],
      CLASSES,
      **{name: values[start:end] for name, values in known.items()},
    )
  return folder


def config(folder: pathlib.Path, kind: str, **changes) -> TableSource:
  names = CLASSES if kind == "tar" else ()
  given: Any = {"path": str(folder), "class_names": names} | changes
  return TableSource(**given)


def rows(source: Source) -> list[tuple]:
  return [(e.example_id, e.image, e.label, e.unit_id) for e in source]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_once_in_order(tmp_path, kind):
  job = config(written(tmp_path / "pets", kind), kind, unit_name="patient")
  source = open_source(job, "train")
  assert (source.name, source.class_names) == ("pets", CLASSES)
  assert source.privacy_unit == "patient"
  owners = [
    int(hashlib.blake2b(p.encode(), digest_size=8).hexdigest(), 16) >> 1
    for p in PATIENTS
  ]
  expected = list(zip(range(N), IMAGES, labels(N), owners, strict=True))
  assert rows(source) == expected
  # A worker has no more than the listing.
  assert rows(open_source(job, "train", source.listing)) == expected
  assert source.where(31).startswith(str(tmp_path))
  assert ("some/00000.png]" if kind == "tar" else "[0]") in source.where(31)
  plain = open_source(config(tmp_path / "pets", kind), "train")
  assert {e.unit_id for e in plain} == {None}
  with pytest.raises(IndexError):
    source[N]


@pytest.mark.parametrize("kind", KINDS)
def test_classes_by_name_and_units_by_number(tmp_path, kind):
  job = config(
    written(
      tmp_path,
      kind,
      label=[CLASSES[label] for label in labels(N)],
      patient=list(range(-5, N - 5)),
    ),
    kind,
    unit_name="patient",
    name="Owls & Co",
  )
  source = open_source(job, "train")
  assert source.name == "Owls & Co"
  assert [e.label for e in source] == labels(N).tolist()
  assert [e.unit_id for e in source] == list(range(-5, N - 5))


@pytest.mark.parametrize("kind", ["parquet", "tar"])
@pytest.mark.parametrize(
  ("names", "texts", "found"),
  [
    ("2 1 0", "2 1 2 1", [0, 1, 0, 1]),
    ("1 2 3", "1 0 2 0", "2 images have no label"),
    ("0 1 2", "2 1 00 0", [2, 1, 0, 0]),
    ("cat dog owl", "2 cat 1 0", [2, 0, 1, 0]),
  ],
)
def test_a_text_is_a_name_or_a_number(tmp_path, kind, names, texts, found):
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES[:4], label=texts.split())
  job = config(path, kind, class_names=tuple(names.split()))
  if isinstance(found, list):
    assert [e.label for e in open_source(job, "all")] == found
    return
  with refused(found):
    open_source(job, "all")


def test_a_folder_may_be_called_like_a_file(tmp_path):
  """As Spark and Dask call it."""
  path = tmp_path / "photos.parquet"
  write_table(
    path / "part-0.snappy.parquet", IMAGES[:3], CLASSES, label=[0] * 3
  )
  source = open_source(config(path, ""), "all")
  assert (source.name, source[2].image) == ("photos", IMAGES[2])


@pytest.mark.parametrize("kind", KINDS)
def test_files_without_labels_share_the_room(tmp_path, monkeypatch, kind):
  """A file's images do not stay when those of others are read."""
  monkeypatch.setattr(recent, "_GROUP_BYTES", 0)
  paths, alive = [], []
  for i in range(5):
    paths.append(str(tmp_path / f"{i}.{kind.upper()}"))
    write_table(tmp_path / f"x.{kind}", IMAGES[i : i + 1], label=[0])
    os.rename(tmp_path / f"x.{kind}", paths[-1])
  of_file = pyarrow.parquet.ParquetFile.read_row_group

  def read_row_group(*args):
    table = of_file(*args)
    alive.append(weakref.ref(column := table.column(0)))
    return SimpleNamespace(column=lambda _: column)

  monkeypatch.setattr(
    pyarrow.parquet.ParquetFile, "read_row_group", read_row_group
  )
  source = open_source(UnlabelledSource(paths=tuple(paths)), "all")
  assert [e.image for e in source] == IMAGES[:5]
  assert sum(ref() is not None for ref in alive) == 2 * (kind == "parquet")


@pytest.mark.parametrize(
  ("names", "split", "found"),
  [
    (["train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"],
     "test", ["test/data-00000-of-00001.arrow"]),
    (["data/test-00000-of-00001-ab12.parquet", "data/train-0-of-1.parquet"],
     "train", ["data/train-0-of-1.parquet"]),
    (["a-train_extra-000-of-001.arrow", "a-train-000-of-001.arrow"],
     "train", ["a-train-000-of-001.arrow"]),
    (["default/train/0001.parquet", "default/train/0000.parquet"], "train",
     ["default/train/0000.parquet", "default/train/0001.parquet"]),
    (["x_train.parquet", "x_test.parquet"], "test", ["x_test.parquet"]),
    (["1.tar", "0.tar", ".2.tar"], "all", ["0.tar", "1.tar"]),
    (["x_train.tar", "b.tar"], "train", ["x_train.tar"]),
    (["x_train.tar", "b.tar"], "all", "no split 'all' .* give --split train.$"),
    (["x_train.tar"], "", "no split '' .* give --split train"),
    (["0.tar"], "train", "no split .train. .* give --split all"),
    (["a/train.tar", "b/train.tar"], "train", r"\(a/\*.tar, b/\*.tar\), which"),
    (["train.tar", "train.arrow"], "train", r"several places \(\*.arrow, \*.t"),
    (["a.tar.gz", "b.tar"], "all", "compressed tars, .* unpack 'a.tar.gz'"),
    (["a.txt"], "all", r"no files that end in \.parquet, \.arrow, \.tar"),
  ],
)  # fmt: skip
def test_names_say_the_split(tmp_path, names, split, found):
  for name in names:
    write_table(tmp_path / name, [name.encode()], CLASSES, label=[0])
  job = config(tmp_path, "tar" if names[0].endswith("tar") else "")
  if isinstance(found, list):
    assert [e.image for e in open_source(job, split)] == [
      name.encode() for name in found
    ]
    return
  with refused(found):
    open_source(job, split)


def test_what_datasets_computed_is_no_data(tmp_path):
  """`Dataset.map` keeps its results beside what `save_to_disk` wrote."""
  for name in ("data-00000-of-00001.arrow", "cache-0123456789abcdef.arrow"):
    write_table(tmp_path / name, IMAGES[:3], CLASSES, label=[0, 1, 2])
  state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
  (tmp_path / "state.json").write_text(json.dumps(state))
  assert len(open_source(config(tmp_path, "arrow"), "all")) == 3
  for bad in ({}, [], state | {"_indices_data_files": [{"filename": "i"}]}):
    (tmp_path / "state.json").write_text(json.dumps(bad))
    with refused(r"state.json.* save the data"):
      open_source(config(tmp_path, "arrow"), "all")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
  ("given", "changes", "said"),
  [
    ({"label": [0, 3, -1]}, {}, r"^2 images have no label .* 3 classes.*\[.*1"),
    ({"label": ["cat", "dog", "cow"]}, {}, "1 image has no label"),
    ({"patient": ["a", None, " "]}, {}, "2 images have no patient"),
    ({"patient": [1, None, 2]}, {}, "1 image has no patient"),
    ({"patient": [1.5, 2, 2]}, {}, "'patient' must be all integers .* float"),
    ({}, {"num_classes": 4}, "num_classes=4 but .* has 3 class_names"),
    ({}, {"class_names": ("a", "a", "b")}, "class"),
  ],
)
def test_one_line_for_what_is_wrong(tmp_path, kind, given, changes, said):
  known = {"label": [0, 1, 2], "patient": ["a", "b", "a"]} | given
  if kind != "tar" and given.get("patient", [0])[0] == 1.5:
    known["patient"] = [1.5, 2.0, 2.0]
  write_table(tmp_path / f"x.{kind}", IMAGES[:3], CLASSES, **known)
  job = config(tmp_path, kind, **{"unit_name": "patient"} | changes)
  with refused(said):
    open_source(job, "all")


@pytest.mark.parametrize(
  ("table", "changes", "said"),
  [
    ({"label": [0]}, {}, "no column of image files .* it has label"),
    ({"image": [["x"]], "label": [0]}, {}, "no column of image files"),
    ({"a": [b"x"], "b": [b"y"]}, {}, "image_key must be set: .* a, b"),
    ({"a": [b"x"]}, {"image_key": "b"}, "image_key='b' is not one of them"),
    ({"a": [b"x"], "y": [0]}, {}, "label_key must be set: choose from y"),
    ({"a": [b"x"]}, {}, "no column of labels: it has a, of bytes"),
    ({"image": [b"x"], "label": [0]}, {}, "names no classes: add class_names"),
    ({"image": [b"x"], "label": [0]}, {"unit_name": "who"}, "unit_name='who'"),
  ],
)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_that_are_not_there(tmp_path, kind, table, changes, said):
  table, path = pa.table(table), tmp_path / f"x.{kind}"
  if kind == "parquet":
    pyarrow.parquet.write_table(table, path)
  else:
    with pa.ipc.new_stream(path, table.schema) as stream:
      stream.write_table(table)
  with refused(said):
    open_source(config(path, kind, **changes), "all")


@pytest.mark.parametrize(
  ("members", "said"),
  [
    ({"a.cls": b"0"}, "1 samples have no image, or several .*: 'a.cls'"),
    ({"a.png": b"", "a.jpg": b"", "a.cls": b"0"}, "1 samples have no image"),
    ({"d/a.png": b"x", "d/a.json": b"no"}, r"\[d/a.json\] is damaged .* pack"),
    ({"a.png": b"x", "a.json": b"[]"}, r"\[a.json\] is damaged"),
    ({"a.png": b"x", "a.cls": b"\xff"}, r"\[a.cls\] is no text"),
    ({"a.png": b"x"}, r"1 image has no label 'label' .*\[a.png\]"),
    ({"a.png": None, "a.cls": b"0"}, "'a.png' is cut short, a link or"),
  ],
)
def test_tars_that_are_not_whole(tmp_path, members, said):
  with tarfile.open(tmp_path / "x.tar", "w") as tar:
    for name, data in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(data or b"")
      if data is None:
        info.type, info.linkname = tarfile.SYMTYPE, "b.png"
      tar.addfile(info, io.BytesIO(data or b""))
  with refused(said):
    open_source(config(tmp_path, "tar"), "all")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 700])
def test_files_that_are_cut_short(tmp_path, kind, size):
  write_table(tmp_path / f"x.{kind}", [b"a" * 900], CLASSES, label=[0])
  os.truncate(tmp_path / f"x.{kind}", size)
  with pytest.raises(InputError) as caught:
    open_source(config(tmp_path, kind), "all")
  assert "\n" not in str(caught.value)


def test_places_outside_the_file_are_found_before_they_are_read(tmp_path):
  """Read, they would end the process: an Arrow file is mapped."""
  places = pa.py_buffer(np.array([0, 2**30, 3], np.int32))
  image = pa.BinaryArray.from_buffers(
    pa.binary(), 2, [None, places, pa.py_buffer(b"abc")]
  )
  table = pa.table({"image": image, "label": [0, 1]})
  with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
    writer.write_table(table)
  with refused("is not an Arrow stream"):
    open_source(config(tmp_path, "arrow"), "all")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_null_is_an_image_that_cannot_be_decoded(tmp_path, kind):
  nulls: list = [None, b"x"]
  write_table(tmp_path / f"x.{kind}", nulls, CLASSES, label=[0, 1])
  source = open_source(config(tmp_path, kind), "all")
  assert [e.image for e in source] == [b"", b"x"]


def test_images_that_are_elsewhere(tmp_path, monkeypatch):
  table = pa.table({"image": [{"bytes": None, "path": "a.png"}], "label": [0]})
  kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
  table = table.set_column(0, "image", table["image"].cast(kind))
  pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
  # No image is broken: none is looked for.
  monkeypatch.delattr(job_module, "check_decodes")
  job = table_job(tmp_path, class_names=CLASSES)
  with refused(r"x.parquet\[0\] has the path of its"):
    run_extraction(job, tmp_path / "cache")


@pytest.mark.parametrize("limit", [0, 10**6])
def test_row_groups_are_read_once_while_they_fit(tmp_path, monkeypatch, limit):
  """Eight threads, each at a place of its own, as in an engine's worker."""
  job, read = config(written(tmp_path, "parquet"), "parquet"), []
  of_file = pyarrow.parquet.ParquetFile.read_row_group
  monkeypatch.setattr(
    pyarrow.parquet.ParquetFile,
    "read_row_group",
    lambda file, group, columns: (
      read.append(group) or of_file(file, group, columns)
    ),
  )
  monkeypatch.setattr(recent, "_GROUP_BYTES", limit)
  source = examples.TableExamples(job, "train")
  places = [8 * i for i in range(8)]
  turns = [at + step for step in range(4) for at in places]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda i: source[i].image, turns))
  assert found == [IMAGES[i] for i in turns]
  if limit:
    assert len(read) <= 10  # four groups, one, and five
  else:
    assert len(read) > 20
    assert len(source._groups._values) == 2


def job_of(folder: pathlib.Path, kind: str) -> ExtractConfig:
  images = [png(image) for image in pixels(N)]
  for i, (start, end) in enumerate([(0, 40), (40, N)]):
    write_table(
      folder / f"{i}.{kind}",
      images[start:end],
      CLASSES,
      label=labels(N)[start:end].tolist(),
    )
  return table_job(folder, class_names=() if kind != "tar" else CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_job_ends_with_the_same_bytes(tmp_path, kind, monkeypatch):
  job = job_of(tmp_path / "pets", kind)
  whole = run_extraction(job, tmp_path / "undisturbed").cache
  assert columns(whole)["label"].tolist() == labels(N).tolist()
  source = job_module.open_split(job)
  read = type(source).__getitem__

  def stop(self, index):
    if index == 50:
      raise KeyboardInterrupt
    return read(self, index)

  with monkeypatch.context() as patch:
    patch.setattr(type(source), "__getitem__", stop)
    with pytest.raises(KeyboardInterrupt, match="1 of 3 shards are finished"):
      run_extraction(job, tmp_path / "cache")
  listing._OPENED.clear()  # as in another process
  assert run_extraction(job, tmp_path / "cache").kept_shards >= 1
  assert digest(tmp_path / "cache") == digest(tmp_path / "undisturbed")
  write_table(tmp_path / f"pets/1.{kind}", [b""] * 30, CLASSES, label=[0] * 30)
  with refused("belongs to another job"):
    run_extraction(job, tmp_path / "cache")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["other", "shorter", "gone"])
def test_workers_read_what_was_listed(tmp_path, monkeypatch, kind, change):
  """Files are compared when a worker opens them, and while it reads."""
  job = job_of(tmp_path / "pets", kind)
  source = job_module.open_split(job)
  again = open_source(job.source, "all", source.listing)
  assert again[69].image == source[69].image
  path = tmp_path / "pets" / f"1.{kind}"
  data = path.read_bytes()
  if change == "gone":
    path.unlink()
  else:
    cut = len(data) // 2 if change == "shorter" else len(data)
    path.write_bytes(data[:cut].replace(b"\x89PNG", b"\x88PNG")[::-1])
    os.utime(path, (0, 0))
  for worker in (again, open_source(job.source, "all", source.listing)):
    with refused(r"1.*(changed|any more|cannot be re)", RunError):
      worker[69]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_of_the_same_size_is_another(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  write_table(path, [b"ab", b"cd"], CLASSES, label=[0, 1])
  size, job = path.stat().st_size, config(path, kind)
  listed = open_source(job, "all").listing
  write_table(path, [b"ab", b"ce"], CLASSES, label=[0, 1])
  assert path.stat().st_size == size
  with refused("was changed since the files were listed", RunError):
    open_source(job, "all", listed)[0]
