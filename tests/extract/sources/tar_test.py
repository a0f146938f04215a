"""Samples of WebDataset's tars, and tars that have none."""

import json

import pytest

from oneshot_dp.extract.sources.source import Example
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import open_dataset, write_tar


@pytest.mark.parametrize(
  ("members", "message"),
  [
    ({"a.cls": b"0"}, "samples without an image, .*: 'a.cls'"),
    ({"a.png": b"", "a.jpg": b"", "a.cls": b"0"}, "samples without an image"),
    ({"a.png": b"x", "a.json": b"[]"}, "'a.json' cannot be read"),
    ({"a.png": b"x", "a.json": b"[" * 10**5}, "'a.json' cannot be read"),
    ({"a.png": b"x", "a.cls": b"\xff"}, "'a.cls' cannot be read"),
    ({"a.png": b"x"}, r"rows whose label in 'label' .*x.tar\[0\]"),
    ({"a.png": None, "a.cls": b"0"}, "'a.png' is cut short, a link or"),
    ({"a.png": b"x", "./a.png": b"x"}, "'./a.png' more than once"),
    ({"a\n.png": b"x", "a\n.jpg": b"x"}, r"'a\\n.png'"),
  ],
)
def test_a_tar_of_incomplete_samples_is_refused_and_names_them(
  tmp_path, members, message
):
  write_tar(tmp_path / "x.tar", members)
  with refused(message):
    open_dataset(tmp_path / "x.tar", num_classes=2)


def test_a_tar_with_files_beside_its_samples_is_read_without_them(tmp_path):
  sample = {"./b/1.png": b"x", "./b/1.cls": b"1"}
  others = {"__MACOSX/b/1.png": b"y", "b/.1.png": b"z", "README": b""}
  write_tar(tmp_path / "x.tar", others | sample)
  source = open_dataset(tmp_path / "x.tar", num_classes=2)
  assert [*source] == [Example(1, b"x")]


def test_a_tar_without_samples_has_no_examples(tmp_path):
  write_tar(tmp_path / "x.tar", {"README": b""})
  assert len(open_dataset(tmp_path / "x.tar", num_classes=2)) == 0


@pytest.mark.parametrize("damage", ["a byte of a header", "the end is missing"])
def test_a_tar_that_is_damaged_in_the_middle_is_refused(tmp_path, damage):
  """Python stops at a damaged header, as at the end of a file, in silence."""
  path = tmp_path / "a.tar"
  members: dict[str, bytes | None] = {}
  for i in range(4):
    members[f"{i}.png"] = b"0"
    members[f"{i}.cls"] = b"0"
  write_tar(path, members)
  data = path.read_bytes()
  header = data.index(b"2.png")
  if damage == "the end is missing":
    path.write_bytes(data[:header])
  else:
    path.write_bytes(data[: header + 3] + b"x" + data[header + 4 :])
  with refused("damaged, or cut short"):
    open_dataset(path, num_classes=3)


def test_a_tar_that_ends_within_a_long_name_is_called_cut_short(tmp_path):
  write_tar(tmp_path / "x.tar", {"a" * 3000 + ".png": b"x"})
  with (tmp_path / "x.tar").open("r+b") as file:
    file.truncate(1024)  # of the 3,005 bytes of the name there are 512
  with refused("it is damaged, or cut short"):
    open_dataset(tmp_path / "x.tar", num_classes=2)


def test_folders_of_two_splits_in_one_tar_are_refused(tmp_path):
  members: dict[str, bytes | None] = {}
  for key in ("train/0", "train/1", "test/2"):
    members |= {f"{key}.jpg": b"x", f"{key}.cls": b"0"}
  write_tar(tmp_path / "x.tar", members)

  with refused("several splits in its column 'names of folders'"):
    open_dataset(tmp_path / "x.tar", num_classes=2)


def write_two_labels(path, pairs):
  """Samples with a label in KEY.cls, and another one in KEY.json."""
  members: dict[str, bytes | None] = {}
  for number, (label, second) in enumerate(pairs):
    members[f"{number}.png"] = b"x"
    members[f"{number}.cls"] = label.encode()
    members[f"{number}.json"] = json.dumps({"label": second}).encode()
  write_tar(path, members)


DIFFERENT = [
  [("0", 0), ("1", 2)],
  [("0", 0), ("1", "2")],
  [("cat", "cat"), ("dog", "eel")],
  [("0", "cat"), ("1", "eel")],
]
EQUAL = [
  [("0", 0), ("1 ", "1")],
  [("cat", "Cat"), ("dog", "dog")],
  [("0", "cat"), ("1", "dog")],
  [("0", "a mammal"), ("1", "a mammal")],  # in other words, not other labels
  [("0", None), ("1", [1])],
]
SECOND = "'cls' and 'label' of the samples' json state different labels"
CLASSES = ("cat", "dog", "eel")


@pytest.mark.parametrize("pairs", DIFFERENT)
def test_json_of_another_label_than_cls_is_warned_of_once(
  tmp_path, capsys, pairs
):
  for name in ("a.tar", "b.tar"):
    write_two_labels(tmp_path / name, pairs)

  open_dataset(tmp_path, class_names=CLASSES)

  assert capsys.readouterr().err.count(SECOND) == 1


@pytest.mark.parametrize("pairs", EQUAL)
def test_json_of_the_label_of_cls_is_not_warned_of(tmp_path, capsys, pairs):
  write_two_labels(tmp_path / "x.tar", pairs)

  open_dataset(tmp_path / "x.tar", class_names=CLASSES)

  assert SECOND not in capsys.readouterr().err


@pytest.mark.parametrize(("label", "expected"), [("cls", 1), ("label", 2)])
def test_a_flag_chooses_between_cls_and_json(tmp_path, capsys, label, expected):
  write_two_labels(tmp_path / "x.tar", [("1", 2)])

  source = open_dataset(tmp_path / "x.tar", class_names=CLASSES, label=label)

  assert list(source.labels) == [expected]
  assert SECOND not in capsys.readouterr().err
