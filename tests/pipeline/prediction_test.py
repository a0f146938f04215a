"""predict: what a head says of images and rows, as a table."""

import contextlib
import csv
import io
import resource
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from tests.pipeline import image_heads
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.predictions import column_of, expected, lines_of
from tests.pipeline.sample_heads import D, sample_info, trained_head
from tests.sample_caches import write_rows

CLASSES = ("cat", "dog", "rat")
ROW = np.eye(1, D, dtype=np.float32)
BACKBONE = {"name": "clusters", "layer": "none"}

# Images.


@pytest.fixture(scope="module")
def labeled_folder(tmp_path_factory, digits_head, digits_photos):
  """The table of 100 images, and what was printed."""
  out = tmp_path_factory.mktemp("tables") / "p.csv"
  with contextlib.redirect_stdout(io.StringIO()) as said:
    status = main(
      ["predict", str(digits_head.path), str(digits_photos), "--out", str(out)]
    )
  assert status == 0
  return out, said.getvalue()


@pytest.mark.slow
def test_a_folder_is_labeled_as_the_head_says(labeled_folder, digits_head):
  out, _ = labeled_folder

  classes = column_of(out, "class")

  assert classes == expected(digits_head)
  # Right about the rows that it learned from.
  right = np.array(classes, int) == image_heads.digits()[1][:100]
  assert right.mean() > 0.6


@pytest.mark.slow
def test_images_of_a_folder_are_in_the_order_of_their_names(labeled_folder):
  out, _ = labeled_folder

  images = column_of(out, "image")

  assert len(images) == 100
  for number, image in enumerate(images):
    assert image.endswith(f"{number:03}.png")


@pytest.mark.slow
def test_scores_are_called_logits(labeled_folder):
  _, said = labeled_folder

  assert "100 images; scores are logits, not probabilities" in said


@pytest.mark.slow
def test_a_table_of_classes_is_for_its_owner_alone(labeled_folder):
  out, _ = labeled_folder

  assert stat.S_IMODE(out.stat().st_mode) == 0o600


@pytest.mark.slow
def test_images_on_both_sides_of_a_flag_are_not_lost(
  tmp_path, capsys, digits_head, digits_photos
):
  first = digits_photos / "000.png"
  second = digits_photos / "001.png"
  out = tmp_path / "p.csv"

  succeeds(capsys, "predict", digits_head.path, first, "--out", out, second)

  assert column_of(out, "image") == [str(first), str(second)]


@pytest.mark.slow
def test_the_best_classes_come_first(
  tmp_path, capsys, digits_head, digits_photos
):
  out = tmp_path / "p.csv"
  images = (digits_photos / "000.png", digits_photos / "001.png")

  succeeds(
    capsys, "predict", digits_head.path, "--top-k", 3, "--out", out, *images
  )

  assert column_of(out, "image") == [str(image) for image in images]
  for line in lines_of(out):
    assert float(line["logit"]) >= float(line["logit_2"])
    assert float(line["logit_2"]) >= float(line["logit_3"])
    assert len({line["class"], line["class_2"], line["class_3"]}) == 3


def write_npz(path, photos):
  np.savez(path, image=image_heads.digits()[0][:20])


def write_parquet(path, photos):
  files = sorted(photos.iterdir())[:20]
  images = [file.read_bytes() for file in files]
  pq.write_table(pa.table({"image": images}), path)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "write"), [("a.npz", write_npz), ("b.parquet", write_parquet)]
)
def test_images_of_one_file_are_named_by_their_place(
  tmp_path, capsys, digits_head, digits_photos, name, write
):
  write(tmp_path / name, digits_photos)
  out = tmp_path / "p.csv"

  succeeds(capsys, "predict", digits_head.path, tmp_path / name, "--out", out)

  assert column_of(out, "class") == expected(digits_head, 20)
  assert column_of(out, "image")[7].endswith(f"{name}[7]")


# Rows of a cache.


@pytest.mark.slow
def test_a_cache_is_labeled_by_its_ids_and_in_part(
  tmp_path, capsys, digits_head
):
  backbone = image_heads.glyph_vit()
  images, labels = image_heads.digits()
  embedding = image_heads.embeddings(backbone, images)
  cache = tmp_path / "cache"
  # Shards of more rows than are classified at once.
  write_rows(
    cache, embedding, labels, backbone=backbone.identity, shard_rows=2048
  )
  class_of_id = {}

  for rows in ("[:30%]", "[30%:]"):
    out = tmp_path / f"{rows[1:3]}.csv"
    words = ("predict", digits_head.path, cache, "--out", out)
    stdout, _ = succeeds(capsys, *words, "--rows", rows)
    assert " rows; scores are logits" in stdout
    for line in lines_of(out):
      class_of_id[int(line["image"])] = int(line["class"])

  by_hand = image_heads.classes_of(digits_head.head, embedding)
  assert class_of_id == dict(enumerate(by_hand))


@pytest.fixture
def head(tmp_path):
  """A head of rows, which learned nothing."""
  info = sample_info(keys="embedding", backbone=BACKBONE)
  write_head(tmp_path / "head", trained_head(), info)
  return tmp_path / "head"


@pytest.fixture
def row(tmp_path):
  """A cache of one row of the head's backbone."""
  cache = tmp_path / "row"
  write_rows(cache, ROW, np.array([0]), num_classes=3, backbone=BACKBONE)
  return cache


def test_a_cache_of_another_backbone_is_refused(tmp_path, capsys, head):
  cache = tmp_path / "cache"
  write_rows(cache, ROW, np.array([0]), backbone={"name": "another"})

  words = ("predict", head, cache, "--out", tmp_path / "x")
  assert "another backbone" in fails(capsys, *words)


def test_a_table_goes_to_standard_output_for_a_dash(capsys, head, row):
  said, _ = succeeds(capsys, "predict", head, row, "--out", "-")

  (line,) = csv.DictReader(io.StringIO(said))
  (expected_class,) = image_heads.classes_of(read_head(head).head, ROW)
  assert line["image"] == "0"
  assert line["class"] == CLASSES[expected_class]


def test_a_table_on_standard_output_has_the_lines_of_the_file(
  tmp_path, capsys, head, row
):
  out = tmp_path / "p.csv"
  words = ("predict", head, row, "--out")

  said, _ = succeeds(capsys, *words, "-")

  succeeds(capsys, *words, out)
  assert said.splitlines() == out.read_text().splitlines()


@pytest.mark.slow
def test_a_table_that_cannot_be_written_is_refused_before_embedding(
  capsys, digits_head, digits_photos
):
  words = ("predict", digits_head.path, digits_photos, "--out")

  said = fails(capsys, *words, "/proc/none/p.csv", status=1)

  assert said.startswith("/proc/none/p.csv cannot be written: ")


def test_a_table_that_the_disk_refuses_at_the_end_is_not_printed(
  tmp_path, capsys, head, row
):
  """It is as private as the rows, and standard output may be a log."""
  words = ("predict", head, row, "--out")
  usual, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))

  try:
    said = fails(capsys, *words, tmp_path / "p.csv", status=1)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (usual, hard))

  assert "p.csv cannot be written: " in said
  assert sorted(tmp_path.iterdir()) == [head, row]


@pytest.fixture
def table_in_place(tmp_path):
  """A file where the table would go."""
  out = tmp_path / "p.csv"
  out.write_text("mine")
  return out


def test_a_table_in_place_is_kept(capsys, head, row, table_in_place):
  words = ("predict", head, row, "--out", table_in_place)

  assert "or give --overwrite" in fails(capsys, *words)
  assert table_in_place.read_text() == "mine"


def test_a_table_in_place_is_replaced_when_asked(
  tmp_path, capsys, head, row, table_in_place
):
  words = ("predict", head, row, "--out", table_in_place)

  succeeds(capsys, *words, "--overwrite")

  assert len(lines_of(table_in_place)) == 1
  assert stat.S_IMODE(table_in_place.stat().st_mode) == 0o600
  assert sorted(tmp_path.iterdir()) == [head, table_in_place, row]
