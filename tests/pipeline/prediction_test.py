import csv
import io
import os
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.backbones.backbone import load_backbone
from oneshot_dp.pipeline.prediction import cell
from tests.extract.images.bit_depth_test import encode_png16
from tests.pipeline import image_heads
from tests.pipeline.command_line import fails, succeeds
from tests.sample_caches import write_rows


@pytest.fixture(scope="module")
def head(tmp_path_factory):
  folder = tmp_path_factory.mktemp("heads") / "digits"
  return image_heads.write_image_head(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  folder = tmp_path_factory.mktemp("photos")
  image_heads.write_images(folder)
  return folder


def lines_of(file):
  return list(csv.DictReader(io.StringIO(file.read_text("utf-8"))))


def expected(head, count=100):
  embedding = image_heads.embeddings(
    image_heads.glyph_vit(), image_heads.digits()[0][:count]
  )
  return image_heads.classes_of(head.head, embedding)


@pytest.mark.slow
def test_a_folder_is_labelled_as_the_head_says(tmp_path, capsys, head, photos):
  out = tmp_path / "p.csv"
  said, _ = succeeds(capsys, "predict", head.path, photos, "--out", out)
  assert "100 images; scores are logits, not probabilities" in said
  lines = lines_of(out)
  assert [line["image"][-7:] for line in lines] == [
    f"{i:03}.png" for i in range(100)
  ]
  assert [int(line["class"]) for line in lines] == expected(head)
  assert stat.S_IMODE(out.stat().st_mode) == 0o600
  # Right about the rows that it learned from.
  right = image_heads.digits()[1][:100] == np.array(expected(head))
  assert right.mean() > 0.6


@pytest.mark.slow
def test_words_after_flags_are_not_lost(tmp_path, capsys, head, photos):
  first = photos / "000.png"
  second = photos / "001.png"
  out = tmp_path / "before.csv"
  succeeds(capsys, "predict", head.path, first, "--out", out, second)
  assert [line["image"] for line in lines_of(out)] == [str(first), str(second)]
  out = tmp_path / "p.csv"
  words = ("predict", head.path, "--top-k", 3, "--out", out, first, second)
  succeeds(capsys, *words)
  assert [line["image"] for line in lines_of(out)] == [str(first), str(second)]
  for line in lines_of(out):  # the best first
    logits = [float(line[name]) for name in ("logit", "logit_2", "logit_3")]
    assert logits == sorted(logits, reverse=True)
    assert len({line["class"], line["class_2"], line["class_3"]}) == 3


def test_npz_and_parquet_say_the_same(tmp_path, capsys, head, photos):
  images = image_heads.digits()[0][:20]
  np.savez(tmp_path / "a.npz", image=images)
  files = [(photos / f"{i:03}.png").read_bytes() for i in range(20)]
  pq.write_table(pa.table({"image": files}), tmp_path / "b.parquet")
  for name in ("a.npz", "b.parquet"):
    out = tmp_path / f"{name}.csv"
    succeeds(capsys, "predict", head.path, tmp_path / name, "--out", out)
    lines = lines_of(out)
    assert [int(line["class"]) for line in lines] == expected(head, 20)
    assert lines[7]["image"].endswith(f"{name}[7]")


@pytest.mark.slow
def test_a_cache_is_labelled_by_its_ids_and_in_part(tmp_path, capsys, head):
  backbone = image_heads.glyph_vit()
  images, labels = image_heads.digits()
  embedding = image_heads.embeddings(backbone, images)
  cache = tmp_path / "cache"
  other = tmp_path / "other"
  of = {"backbone": backbone.identity, "shard_rows": 2048}
  write_rows(cache, embedding, labels, **of)  # more than are done at once
  found = {}
  for part in ("[:30%]", "[30%:]"):
    out = tmp_path / f"{part[1:3]}.csv"
    words = ("predict", head.path, cache, "--out", out)
    succeeds(capsys, *words, "--rows", part)
    found |= {int(line["image"]): line["class"] for line in lines_of(out)}
  by_hand = image_heads.classes_of(head.head, embedding)
  assert found == dict(enumerate(map(str, by_hand)))
  write_rows(other, embedding, labels, backbone={"name": "another"})
  words = ("predict", head.path, other, "--out", tmp_path / "x")
  assert "another backbone" in fails(capsys, *words)


def test_all_broken_images_are_named_at_once_and_nothing_is_written(
  tmp_path, capsys, head, photos
):
  for name in ("a.png", "z.jpg"):
    (tmp_path / name).write_bytes(b"no image")
  images = (tmp_path / "a.png", photos / "000.png", tmp_path / "z.jpg")
  out = tmp_path / "p.csv"
  words = ("predict", head.path, *images, "--out", out)
  line = fails(capsys, *words)
  assert line.startswith("2 of 3 images cannot be decoded")
  assert "a.png" in line
  assert "z.jpg" in line
  assert [*tmp_path.glob("*p.csv*")] == []
  said, errors = succeeds(capsys, *words, "--on-decode-error", "skip")
  assert "1 image;" in said
  assert "z.jpg" in errors
  assert [line["class"] != "" for line in lines_of(out)] == [False, True, False]


def test_names_can_neither_run_nor_forge(tmp_path, capsys, head, photos):
  for name in "=1+1", "+x", "-y", "@z", "'q", "a\x1b[31m", "b\nc", "\u202e":
    shown = cell(name)
    assert shown.isprintable()
    assert shown[0] not in "=+-@"
  folder = tmp_path / "photos"
  folder.mkdir()
  name = "=cmd\x1b[31m\n.png"
  (folder / name).write_bytes((photos / "000.png").read_bytes())
  out = tmp_path / "p.csv"
  said, _ = succeeds(capsys, "predict", head.path, folder, "--out", out)
  text = out.read_text()
  assert "\x1b" not in text + said
  assert len(text.splitlines()) == 2


def test_another_backbone_is_refused(tmp_path, capsys, head, photos):
  weights = tmp_path / "other.safetensors"
  weights.write_bytes(b"not these weights")
  words = ("predict", head.path, photos, "--out", tmp_path / "p.csv")
  assert "has SHA-256" in fails(capsys, *words, "--weights", weights)
  assert not (tmp_path / "p.csv").exists()


@pytest.mark.long
def test_a_killed_run_leaves_nothing(
  tmp_path, tmp_path_factory, capsys, monkeypatch
):
  """A whole file has no name, until it has the one that was asked for."""
  backbone = load_backbone("glyph_vit", embedding="cls")  # a head's own layer
  place = tmp_path_factory.mktemp("heads") / "head"
  head = image_heads.write_image_head(place, backbone)
  (photo,) = image_heads.write_images(tmp_path, 1)
  words = ("predict", head.path, tmp_path / photo, "--out", tmp_path / "p.csv")
  there = []

  def stopped(*_, **__):
    there.extend(tmp_path.iterdir())
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(os, "link", stopped)
    fails(capsys, *words, status=130)
  assert there == [*tmp_path.iterdir()] == [tmp_path / photo]
  succeeds(capsys, *words)


@pytest.mark.slow
def test_a_function_that_was_changed_is_another_backbone(
  tmp_path, capsys, photos
):
  file = tmp_path / "mine.py"
  code = (
    "def embed(params, images):\n"
    "  return images[:, ::4, ::4].reshape(len(images), -1) * {}\n"
  )
  file.write_text(code.format(1))
  backbone = load_backbone(f"{file}:embed")
  saved = image_heads.write_image_head(tmp_path / "head", backbone)
  words = ("predict", saved.path, photos, "--backbone", f"{file}:embed")
  succeeds(capsys, *words, "--out", tmp_path / "a.csv")
  file.write_text(code.format(2))
  words = (*words, "--out", tmp_path / "b.csv")
  assert "is not the backbone that" in fails(capsys, *words)
  assert not (tmp_path / "b.csv").exists()


def test_files_that_are_not_read_are_in_the_table_with_the_reason(
  tmp_path, capsys, head, photos
):
  folder = tmp_path / "photos"
  folder.mkdir()
  (folder / "b.png").write_bytes((photos / "000.png").read_bytes())
  (folder / "a.tif").write_bytes(b"II*\0")
  (folder / "c.JXL").write_bytes(b"\xff\x0a")
  out = tmp_path / "p.csv"

  _, err = succeeds(capsys, "predict", head.path, folder, "--out", out)

  lines = {line["image"][-6:]: line for line in lines_of(out)}
  assert len(lines) == 3
  assert lines["/b.png"]["class"] != ""
  assert lines["/b.png"]["note"] == ""
  for name in "/a.tif", "/c.JXL":
    assert lines[name]["class"] == ""
    assert lines[name]["note"].startswith("passed over: not a supported")
  assert err.count("passed over, without a class") == 2


def test_a_table_goes_to_standard_output_for_a_dash(capsys, head, photos):
  said, _ = succeeds(
    capsys, "predict", head.path, photos / "000.png", "--out", "-"
  )

  (line,) = csv.DictReader(io.StringIO(said))
  assert line["image"] == str(photos / "000.png")
  assert line["class"] == str(expected(head, 1)[0])


def test_a_table_is_replaced_only_when_asked(tmp_path, capsys, head, photos):
  out = tmp_path / "p.csv"
  out.write_text("mine")
  words = ("predict", head.path, photos / "000.png", "--out", out)

  assert "or give --overwrite" in fails(capsys, *words)
  assert out.read_text() == "mine"
  succeeds(capsys, *words, "--overwrite")

  assert len(lines_of(out)) == 1
  assert stat.S_IMODE(out.stat().st_mode) == 0o600
  assert [*tmp_path.iterdir()] == [out]


@pytest.fixture
def twelve_bits(tmp_path):
  """A digit of 12 bits per sample, in a file of 16."""
  samples = image_heads.digits()[0][0].astype(np.uint16) * 16
  file = tmp_path / "twelve.png"
  file.write_bytes(encode_png16(samples, 0))
  return file


@pytest.mark.slow
def test_a_head_remembers_the_bit_depth_of_its_training(
  tmp_path, capsys, twelve_bits
):
  backbone = load_backbone(
    "glyph_vit", preprocess=PreprocessConfig(bit_depth=12)
  )
  head = image_heads.write_image_head(tmp_path / "head", backbone)
  words = ("predict", head.path, twelve_bits, "--out", "-")
  said, _ = succeeds(capsys, *words)
  (line,) = csv.DictReader(io.StringIO(said))
  assert line["class"] == str(expected(head, 1)[0])


def test_files_of_fewer_bits_than_those_of_the_training_need_the_flag(
  capsys, head, twelve_bits
):
  words = ("predict", head.path, twelve_bits, "--out", "-")
  assert "give --bit-depth 10, 12 or 14" in fails(capsys, *words)
  said, _ = succeeds(capsys, *words, "--bit-depth", 12)
  (line,) = csv.DictReader(io.StringIO(said))
  assert line["class"] == str(expected(head, 1)[0])


def test_images_of_more_than_max_pixels_are_refused(capsys, head, photos):
  words = ("predict", head.path, photos / "000.png", "--out", "-")
  assert "give --max-pixels 64" in fails(capsys, *words, "--max-pixels", 63)
  succeeds(capsys, *words, "--max-pixels", 64)
