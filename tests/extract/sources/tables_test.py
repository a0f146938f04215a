"""Rows of Parquet files and tars as images with labels and owners."""

import concurrent.futures
import contextlib
import datetime
import hashlib
import os
import pathlib
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.sources import parquet
from oneshot_dp.extract.sources.open_source import serialize_source
from tests.extract.refusals import refused
from tests.extract.sources.made import again, opened, write_table

KINDS = ("parquet", "tar")
CLASSES = ("cat", "dog", "owl")
N = 70
LABELS = [i % 3 for i in range(N)]
PATIENTS = [f"p{i // 4}" for i in range(N)]
IMAGES = [b"image %d" % i for i in range(N)]


def written(folder: pathlib.Path, kind: str) -> pathlib.Path:
  """Three files of a split `train`, with groups that do not end together."""
  place = {"parquet": "data/train-0000{}-of-00003"}.get(kind, "x-train-{}")
  for i, (start, end) in enumerate([(0, 30), (30, 31), (31, N)]):
    path = folder / f"{place.format(i)}.{kind}"
    columns = {"label": LABELS[start:end], "patient": PATIENTS[start:end]}
    write_table(path, IMAGES[start:end], CLASSES, **columns)
  return folder


def of(folder: pathlib.Path, kind: str, **settings: Any) -> Any:
  names = CLASSES if kind == "tar" else ()
  return opened(folder, **{"class_names": names} | settings)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_once_in_order(tmp_path, kind):
  source = of(written(tmp_path / "pets", kind), kind, units="patient")
  assert (source.name, source.split) == ("pets", "train")
  assert (source.class_names, source.unit) == (CLASSES, "patient")
  owners = [
    int(hashlib.blake2b(p.encode(), digest_size=8).hexdigest(), 16) >> 1
    for p in PATIENTS
  ]
  expected = [*zip(LABELS, IMAGES, owners, strict=True)]
  assert [*source] == [*again(source)] == expected
  assert re.fullmatch(rf"{tmp_path}.*\[0\]", source.display_path(31))
  with pytest.raises(IndexError):
    source[N]
  indices = [i * 37 % N for i in range(300)]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda i: source[i].image, indices))
  assert found == [IMAGES[i] for i in indices]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_a_name_or_a_number(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  for names, texts, found in (
    ("2 1 0", "2 1 2 1", [0, 1, 0, 1]),
    ("cat dog owl", "2 cat 1 0", [2, 0, 1, 0]),
  ):
    write_table(path, IMAGES[:4], label=texts.split(), who=[-5, 2**40, 0, 0])
    source = opened(path, class_names=tuple(names.split()), units="who")
    assert [e.label for e in source] == found
    assert [e.unit_id for e in source] == [-5, 2**40, 0, 0]
  write_table(path, IMAGES[:4], label=["1", "0", "2", "0"])
  with refused(r"images without a label .*\[1\].*\[3\]"):
    opened(path, class_names=("1", "2", "3"))


@pytest.mark.parametrize("kind", KINDS)
def test_several_words_and_patterns_are_one_source(tmp_path, kind):
  pets, names = tmp_path / "pets", {"class_names": ("a",)}
  every = [pets / f"x{i:02d}.{kind}" for i in range(12)]
  for path, image in zip(every, IMAGES, strict=False):
    write_table(path, [image], label=[0])
  some = [f"{pets}/x{{00..11}}.{kind}"]
  for words in (some, [f"{pets}/*.{kind}"], every, [pets]):
    source = opened(*words, **names)
    assert source.name == "pets"
    assert [e.image for e in source] == IMAGES[:12]
  assert opened(every[0], **names).name == "x00"
  with refused("give a folder .* each once"):
    opened(every[0], every[0], **names)
  for word in (f"x{{9..1}}.{kind}", f"x{{00..12}}.{kind}"):
    with refused("is not there"):
      opened(pets / word, **names)


SPLITS = [
  ("data/test-0-of-1-ab12.parquet data/train-0-of-1.parquet", "train", [1]),
  ("a-train_extra-000-of-001.tar a-train-000-of-001.tar", "train", [1]),
  ("default/train/0001.parquet default/train/0000.parquet", None, [1, 0]),
  ("x_train.parquet x_test.parquet", None, "give --split, one of 'test', 'tr"),
  ("1.tar 0.tar .2.tar", "all", [1, 0]),
  ("x.parquet/part-0.snappy.parquet", "all", [0]),  # as Spark has it
  ("x_train.tar b.tar", "train", [0]),
  ("x_train.tar b.tar", None, "give --split, one of '', 'train'"),
  ("0.tar", "train", "--split 'train' is none of 'all'"),
  ("a/train.tar b/train.tar", "train", r"one of 'a/\*.tar', 'b/\*.tar'"),
  ("a.tar.gz b.tar", "all", "'a.tar.gz': give .*not compressed"),
  ("a.txt", "all", r"'a.txt': give a folder of a folder"),
]


@pytest.mark.parametrize(("names", "split", "found"), SPLITS)
def test_names_say_the_split(tmp_path, names, split, found):
  every = names.split()
  for name in every:
    write_table(tmp_path / name, [name.encode()], label=[0])
  said = contextlib.nullcontext() if isinstance(found, list) else refused(found)
  with said:
    source = opened(tmp_path, class_names=CLASSES, split=split)
    assert [e.image.decode() for e in source] == [every[i] for i in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
  ("given", "changes", "said"),
  [
    ({"label": [0, 3, -1]}, {}, r"images without a label .* 3 classes"),
    ({"label": ["cat", "dog", "cow"]}, {}, "images without a label"),
    ({"patient": ["a", None, " "]}, {}, "images without a patient"),
    ({"patient": [1, None, 2]}, {}, "images without a patient"),
    ({"patient": [1.5, 2.0, 2.0]}, {}, "'patient'.* must be .*integers"),
    ({"patient": [[1], [2], [3]]}, {}, "'patient'.* must be .*integers"),
    ({}, {"num_classes": 4}, "names 3 classes .* leave --class-names"),
    ({}, {"units": "example"}, "must be a short public one"),
    ({}, {"units": "nobody"}, "nobody"),
    ({}, {"image": "jpg"}, "--image( 'jpg' is none of)?"),
    ({}, {"label": "species"}, "species"),
  ],
)
def test_one_line_for_what_is_wrong(tmp_path, kind, given, changes, said):
  known = {"label": [0, 1, 2], "patient": ["a", "b", "a"]} | given
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES[:3], CLASSES, **known)
  with refused(said):
    of(path, kind, **{"units": "patient"} | changes)


@pytest.mark.parametrize(
  ("table", "said"),
  [
    ({"image": [["x"]], "label": [0]}, "nothing that can be its --image"),
    ({"a": [b"x"], "b": [b"y"]}, "give --image, one of 'a', 'b'"),
    ({"a": [b"x"], "y": [0]}, "--label 'label' is none of 'y'"),
    ({"image": [b"x"], "label": [0.5]}, "'double': it must be integers"),
    ({"image": [b"x"], "label": [datetime.datetime(1, 1, 1)]}, "timestamp"),
    ({"image": [b"x"], "label\x1b": [0]}, r"none of 'label\\x1b'"),
  ],
)
def test_columns_that_are_not_there(tmp_path, table, said):
  pyarrow.parquet.write_table(pa.table(table), tmp_path / "x.parquet")
  with refused(said):
    opened(tmp_path / "x.parquet")


def test_a_table_without_rows_with_nulls_and_beside_others(tmp_path):
  path = tmp_path / "x.parquet"
  write_table(path, [], CLASSES, label=pa.array([], "int64"))
  assert len(opened(path)) == 0
  # A null is an image that cannot be decoded.
  write_table(path, [None, b"x"], CLASSES, label=[0, 1])
  assert [e.image for e in opened(path)] == [b"", b"x"]
  with refused("give a folder of a folder of images .* each once"):
    opened(path, tmp_path)
  write_table(tmp_path / "z.parquet", [b"x"], CLASSES[::-1], label=[0])
  with refused("z.parquet' has other classes"):
    opened(tmp_path)


@pytest.mark.parametrize("limit", [0, 10**6])
def test_row_groups_are_read_once_while_they_fit(tmp_path, monkeypatch, limit):
  """Eight threads, each at a place of its own, as in an engine's worker."""
  read, whole = [], pyarrow.parquet.ParquetFile
  of_file = whole.read_row_group
  monkeypatch.setattr(
    *(whole, "read_row_group"),
    lambda file, group, some: read.append(group) or of_file(file, group, some),
  )
  monkeypatch.setattr(parquet, "_KEPT_BYTES", limit)
  monkeypatch.setattr(parquet, "_groups", {})
  source = opened(written(tmp_path, "parquet"))
  places = [8 * i for i in range(8)]
  turns = [at + step for step in range(4) for at in places]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda i: source[i].image, turns))
  assert found == [IMAGES[i] for i in turns]
  assert (len(read) <= 10) if limit else (len(read) > 20)  # of ten groups
  assert len(parquet._groups) == (len(read) if limit else 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["other", "shorter", "empty", "gone"])
def test_workers_read_what_was_listed(tmp_path, kind, change):
  """Files are compared when a worker opens them, and while it reads."""
  path = tmp_path / f"x.{kind}"
  write_table(path, IMAGES, CLASSES, label=LABELS)
  source = of(path, kind)
  assert again(source)[69].image == IMAGES[69]
  data = path.read_bytes()
  length = {"shorter": len(data) // 2, "empty": 0}.get(change, len(data))
  path.write_bytes(data[:length])
  os.utime(path, (0, 0))
  if change == "other":
    assert serialize_source(of(path, kind)) != serialize_source(source)
  elif change == "gone":
    path.unlink()
  else:
    with refused(f"x.{kind}"):
      of(path, kind)
  with refused("cannot be read", RunError):
    again(source)[3]


def test_damaged_parquet_is_one_line(tmp_path):
  path = tmp_path / "x.parquet"
  write_table(path, IMAGES[:9], CLASSES, label=LABELS[:9], who=PATIENTS[:9])
  good = path.read_bytes()
  for at in range(0, len(good), 23):
    path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
    with contextlib.suppress(InputError, RunError):
      list(opened(path, units="who"))


def test_what_is_no_class_label(tmp_path):
  for said in ("[", "[]", '{"info": {"features": 3}}', "[" * 9999):
    table = pa.table({"image": [b"x"], "label": [0]})
    table = table.replace_schema_metadata({"huggingface": said})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    assert opened(tmp_path / "x.parquet", num_classes=1)[0].label == 0
  write_table(tmp_path / "x.parquet", [b"x"], ["a", "a\x1b"], label=[0])
  with refused("control characters"):
    opened(tmp_path / "x.parquet")
