"""`oneshot-dp predict`: one answer, whatever the images come in."""

import csv
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from oneshot_dp.configs.extract_config import BackboneConfig, UnlabelledSource
from oneshot_dp.extract.sources.open_source import open_source
from oneshot_dp.extract.weights import weights_cache
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.saved_head.model_card import model_card
from oneshot_dp.pipeline.serving.embedding import backbone_config
from tests.extract.image_jobs import CLASSES, damage, pixels
from tests.extract.tables import png
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.serving.conftest import N, extract

FORMS = {
  "folder": "{place}/photos",
  "files": " ".join(
    f"{{place}}/photos/{i // 10}/{i:03d}.png" for i in range(N)
  ),
  "npz": "{place}/images.npz",
  "structs": "{place}/structs.parquet",
  "beam": "{place}/images.npz --runner DirectRunner",
}


@pytest.fixture
def predict(place, tmp_path, capsys):
  def run(images: str, head: str = "unit_norm") -> list[dict[str, str]]:
    out = tmp_path / "out.csv"
    words = images.format(place=place).split()
    succeeds(capsys, "predict", place / head, *words, "--out", out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob("out*")] == ["out.csv"]
    with out.open(newline="") as file:
      rows = list(csv.DictReader(file))
    out.unlink()
    return rows

  return run


def classes(rows: list[dict[str, str]]) -> list[str]:
  return [row["class"] for row in rows]


@pytest.mark.parametrize("head", ["unit_norm", "lamb"])
def test_what_extract_and_evaluate_say(predict, place, capsys, head):
  """Evaluated on its own answers, a head is right on all of them."""
  found = classes(predict(FORMS["folder"], head))
  assert len(set(found)) > 1
  labels = [CLASSES.index(name) for name in found]
  np.savez(
    place / f"{head}.npz",
    image=pixels(N),
    label=labels,
    class_names=np.array(CLASSES),
  )
  extract(place, f"{head}.npz", f"{head}-answers")
  cache = place / f"{head}-answers"
  capsys.readouterr()
  words = ["--cache", cache, "--ledger-dir", place / "ledgers", "--json"]
  out, _ = succeeds(capsys, "evaluate", place / head, *words)
  assert json.loads(out)["top1"] == 1.0
  of_cache = predict(str(cache), head)
  assert classes(of_cache) == found
  assert [row["image"] for row in of_cache] == [str(i) for i in range(N)]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "folder"])
def test_every_form_has_the_same_answer(predict, form):
  expected, found = predict(FORMS["folder"]), predict(FORMS[form])
  assert classes(found) == classes(expected)
  for one, other in zip(found, expected, strict=True):
    assert float(one["logit"]) == pytest.approx(float(other["logit"]), 1e-5)
  in_one_file = form not in ("files", "folder")
  assert found[7]["image"].endswith("[7]" if in_one_file else "0/007.png")


@pytest.mark.parametrize("beam", ["", " --runner DirectRunner"])
def test_what_cannot_be_decoded_keeps_its_place(predict, place, tmp_path, beam):
  expected = classes(predict(FORMS["folder"]))
  shutil.copytree(place / "photos", tmp_path / "photos")
  for name in ("000", "025", "039"):
    damage(tmp_path / f"photos/{int(name) // 10}/{name}.png")
  found = classes(predict(f"{tmp_path}/photos{beam}"))
  assert [i for i, name in enumerate(found) if not name] == [0, 25, 39]
  kept = [i for i in range(N) if i not in (0, 25, 39)]
  assert [found[i] for i in kept] == [expected[i] for i in kept]


def test_nothing_that_can_be_decoded_is_a_failure(place, tmp_path, capsys):
  (tmp_path / "notes.png").write_text("no image")
  words = [str(place / "unit_norm"), str(tmp_path / "notes.png")]
  assert main(["predict", *words, "--out", str(tmp_path / "out.csv")]) == 1
  assert "no image could be decoded" in capsys.readouterr().err
  assert (tmp_path / "out.csv").exists()


def test_the_best_classes_first(predict):
  for row in predict(FORMS["npz"] + " --top-k 3"):
    numbers = [float(row[name]) for name in ("logit", "logit_2", "logit_3")]
    assert numbers == sorted(numbers, reverse=True)
    assert {row["class"], row["class_2"], row["class_3"]} == set(CLASSES)


def test_probabilities_by_public_labels(predict, place, capsys):
  image, names = pixels(300), np.array(CLASSES)
  np.savez(place / "public.npz", image=image)
  answers = classes(predict(f"{place}/public.npz", "lamb"))
  label = np.array([CLASSES.index(name) for name in answers])
  label[::3] = 0  # the head is right on most of them
  np.savez(place / "public.npz", image=image, label=label, class_names=names)
  extract(place, "public.npz", "public")
  options = f" --top-k 3 --ledger-dir {place}/ledgers --calibration-cache"
  refused = (place / "unit_norm", place / "images.npz", *options.split())
  rows = predict(f"{FORMS['npz']}{options} {place}/public", "lamb")
  plain = predict(FORMS["npz"], "lamb")
  assert classes(rows) == classes(plain)
  names = ("probability", "probability_2", "probability_3")
  for row in rows:
    assert sum(float(row[name]) for name in names) == pytest.approx(1, abs=1e-4)
  capsys.readouterr()
  said = fails(
    capsys, "predict", *refused, place / "train", "--out", place / "no.csv"
  )
  assert "may hold training rows" in said


def test_the_backbone_is_the_receipts(place, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv("ONESHOT_DP_WEIGHTS_DIR", str(tmp_path / "weights"))
  shutil.copytree(place / "unit_norm", tmp_path / "head")
  path = tmp_path / "head/receipt.json"
  receipt = json.loads(path.read_text())
  data = receipt["data"]
  # Read with other settings than it was trained on: the fingerprint says so.
  changed = data | {"preprocess": data["preprocess"] | {"image_size": 16}}
  path.write_text(json.dumps(receipt | {"data": changed}))
  words = ["predict", tmp_path / "head", place / "images.npz"]
  said = fails(capsys, *words, "--out", tmp_path / "out.csv")
  assert "README.md is not about this receipt.json: one was changed" in said
  card = model_card(json.loads(path.read_text()))
  (tmp_path / "head/README.md").write_text(card)
  for more in ([], ["--runner", "DirectRunner"]):
    said = fails(capsys, *words, "--out", tmp_path / "out.csv", *more)
    assert "is not the backbone that the head was trained on" in said
  assert not list(tmp_path.glob("out*"))
  # Weights are found by their hash, or said where.
  sha256 = "ab" * 32
  vit = data | {
    "backbone": data["backbone"]
    | {"name": "vit_ti16", "layer": "cls", "weights_sha256": sha256}
  }
  nowhere = pytest.raises(ValueError, match=r"are with --backbone\.weights")
  with nowhere:
    backbone_config(vit, None, None)
  weights_cache.remember("hf://someone/vit/model.safetensors", sha256)
  config, _ = backbone_config(vit, None, None)
  assert config == BackboneConfig(
    name="vit_ti16",
    weights="hf://someone/vit/model.safetensors",
    weights_sha256=sha256,
    embedding="cls",
  )
  weights_cache.remember(str(tmp_path / "moved.npz"), sha256)
  with nowhere:
    backbone_config(vit, None, None)
  with pytest.raises(ValueError, match="of imported features"):
    backbone_config(data | {"preprocess": {}}, None, None)


@pytest.mark.parametrize(
  ("images", "said"),
  [
    ("", "no images: name files, folders of them"),
    ("{place}/nowhere", "neither a file nor a folder"),
    ("{place}/unit_norm", "has no images"),
    ("{place}/train {place}/photos", "is a cache of features: give it alone"),
    ("{place}/ledgers.parquet", "is not a Parquet file"),
    ("{place}/other.parquet", "has no column of image files as bytes"),
    ("{place}/label.npz", "no array 'image'"),
    ("{place}/photos --top-k 4", "--top-k 4 must be from 1 to"),
    ("{place}/photos --tpo-k 4", "Did you mean --top-k?"),
    ("{place}/photos --out {place}/unit_norm", "already holds something"),
  ],
)
def test_one_line_for_what_is_wrong(place, tmp_path, capsys, images, said):
  (place / "ledgers.parquet").write_text("no")
  shutil.copy(place / "structs.parquet", place / "other.parquet")

  pa.parquet.write_table(
    pa.table({"image": ["a.png"]}), place / "other.parquet"
  )
  np.savez(place / "label.npz", label=np.arange(3))
  words = images.format(place=place).split()
  if "--out" not in words:
    words += ["--out", str(tmp_path / "out.csv")]
  assert said in fails(capsys, "predict", place / "unit_norm", *words)
  assert not list(tmp_path.glob("out*"))


def test_the_name_of_the_source_is_of_its_files(tmp_path):
  """So that a job is not resumed with other images."""

  def name() -> str:
    return open_source(UnlabelledSource(paths=(str(tmp_path),)), "all").name

  (tmp_path / "a.png").write_bytes(png(pixels(1)[0]))
  one = name()
  assert name() == one
  Image.fromarray(pixels(2)[1]).save(tmp_path / "a.png")
  two = name()
  (tmp_path / "a.png").rename(tmp_path / "b.png")
  assert len({one, two, name()}) == 3
