import csv
import os
import pathlib

import pytest
from jax import export

from oneshot_dp.pipeline.exports import HEAD_FILE, IMAGES_FILE, export_head
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline import image_heads
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_heads import sample_info, trained_head


@pytest.fixture(scope="module")
def head(tmp_path_factory):
  return image_heads.write_image_head(tmp_path_factory.mktemp("heads") / "auto")


def program(file):
  return export.deserialize(bytearray(file.read_bytes()))


@pytest.mark.slow
def test_what_is_exported_names_the_class_of_100_in_100(tmp_path, capsys, head):
  out = tmp_path / "model"
  photos = tmp_path / "photos"
  said, _ = succeeds(capsys, "export", head.path, "--to", out)
  assert IMAGES_FILE in said
  name, *_ = image_heads.write_images(photos)
  succeeds(capsys, "predict", head.path, photos, "--out", tmp_path / "p.csv")
  with (tmp_path / "p.csv").open() as file:
    predicted = [int(line["class"]) for line in csv.DictReader(file)]
  backbone = image_heads.glyph_vit()
  images = image_heads.digits()[0][:100]
  embedding = image_heads.embeddings(backbone, images)
  assert image_heads.classes_of(head.head, embedding) == predicted
  of_images = program(out / IMAGES_FILE)
  of_pixels = of_images.call(image_heads.shown(backbone, images))
  assert of_pixels.argmax(axis=1).tolist() == predicted
  logits = program(out / HEAD_FILE).call(embedding)
  assert logits.argmax(axis=1).tolist() == predicted
  assert of_images.platforms == ("cpu", "cuda", "tpu")
  # Of any batch size, as the code on the card has it, and no path of here.
  card = (out / "README.md").read_text()
  code = card.partition("```python\nimport pathlib")[2].partition("```")[0]
  said = []
  script = code.replace('pathlib.Path("', f'pathlib.Path("{out}/')
  script = script.replace("image.jpg", f"{photos}/{name}")
  exec(f"import pathlib{script}", {"print": said.append})
  assert said == [str(predicted[0])]
  content = (out / IMAGES_FILE).read_bytes()
  assert str(pathlib.Path(__file__).parents[2]).encode() not in content
  assert "**Not verified: no ledger was at hand.**" in card
  assert card.startswith("---\nlibrary_name: jax\n")
  assert "epsilon = 8" in card


@pytest.mark.slow
def test_a_head_that_the_ledger_does_not_know_says_so_on_the_card(
  tmp_path, capsys, head, train_cache
):
  succeeds(
    capsys,
    *("train", "--cache", train_cache.path, "--epsilon", 1, "--delta", 1e-3),
    *("--head", "lamb", "--out", tmp_path / "charged"),
  )
  out = tmp_path / "model"
  said, _ = succeeds(capsys, "export", head.path, "--to", out)
  assert "NOT VERIFIED" in said
  assert "**NOT VERIFIED" in (out / "README.md").read_text()
  out = tmp_path / "vouched"
  said, _ = succeeds(capsys, "export", tmp_path / "charged", "--to", out)
  card = (out / "README.md").read_text()
  assert "VERIFIED" not in said + card
  assert "Not verified" not in card
  # It is of imported features: the head alone, and the reason.
  assert "imported features" in said
  assert HEAD_FILE in said
  assert not (out / IMAGES_FILE).exists()


def test_the_card_of_a_copy_does_not_call_it_a_head_folder(
  tmp_path, capsys, train_cache
):
  succeeds(
    capsys,
    *("train", "--cache", train_cache.path, "--epsilon", 1, "--delta", 1e-3),
    *("--head", "lamb", "--out", tmp_path / "head"),
  )

  succeeds(capsys, "export", tmp_path / "head", "--to", tmp_path / "model")

  head_card = (tmp_path / "head" / "README.md").read_text()
  copy_card = (tmp_path / "model" / "README.md").read_text()
  for words in "take this folder", "load_head", "`oneshot-dp verify` on this":
    assert words in head_card
    assert words not in copy_card


def test_the_card_of_a_copy_has_no_path_of_the_machine_that_made_it(
  tmp_path, head
):
  verdict = verify_head(head.path, Ledger(tmp_path / "ledger"))
  reason = f"{tmp_path}/weights.npz cannot be read: Permission denied."

  _, notes = export_head(
    tmp_path / "model", read_head(head.path), verdict, reason
  )

  card = (tmp_path / "model" / "README.md").read_text()
  assert notes == [reason]
  assert str(tmp_path) not in card
  assert "The backbone was not at hand" in card


def test_an_export_is_on_the_disk_before_it_is_in_view(
  tmp_path, head, monkeypatch
):
  synced = []

  def record(handle):
    synced.append(os.readlink(f"/proc/self/fd/{handle}"))

  monkeypatch.setattr(os, "fsync", record)
  verdict = verify_head(head.path, Ledger(tmp_path / "ledger"))
  export_head(tmp_path / "model", read_head(head.path), verdict, "no backbone")

  staging = tmp_path / ".model.unfinished" / "whole"
  names = [file.name for file in (tmp_path / "model").iterdir()]
  before_rename = synced[: synced.index(str(staging)) + 1]
  assert {str(staging / name) for name in names} <= set(before_rename)


@pytest.mark.slow
def test_what_is_there_stays_and_a_failed_export_leaves_nothing(
  tmp_path, capsys, head, monkeypatch
):
  out = tmp_path / "model"
  out.mkdir()
  assert "already exists" in fails(capsys, "export", head.path, "--to", out)
  assert [*out.iterdir()] == []
  out.rmdir()
  write = pathlib.Path.write_bytes

  def full(self, data):
    if self.name == "receipt.json":
      raise OSError(28, "No space left on device")
    return write(self, data)

  monkeypatch.setattr(pathlib.Path, "write_bytes", full)
  line = fails(capsys, "export", head.path, "--to", out, status=1)
  assert "No space left" in line
  assert [*tmp_path.iterdir()] == []


def test_a_record_for_the_registry_says_what_the_receipt_says(tmp_path, capsys):
  yaml = pytest.importorskip("yaml")
  name = 'a: "b"\\ #'
  info = sample_info(
    unit="patient", dataset=name, class_names=("x", "- y", "z")
  )
  receipt = write_head(tmp_path / "head", trained_head(2.0), info)
  out = tmp_path / "model"
  succeeds(capsys, "export", tmp_path / "head", "--to", out, "--registry")
  text = (out / "deployment.yaml").read_text()
  record = yaml.safe_load(text)
  assert (record["status"], record["tier"]) == ("Draft", 3)
  # Of the registry's schema, tier 3: sections, and words of closed lists.
  basic, variant, loss, model, accounting, *_ = record["deployment"].values()
  assert " ".join(record["deployment"]) == (
    "basic dp_variant privacy_loss deployment_model accounting implementation"
    " administrative"
  )
  assert basic["data_product_type"] == "Machine learning model"
  assert variant["variant_name"] == "Approximate DP"
  assert loss["privacy_unit"] == "patient"
  assert [model[of] for of in ("model_name", "release_type")] == [
    "Central", "One release"
  ]  # fmt: skip
  assert model["data_source_type"] == "Static"
  assert model["access_type"] == "Non-interactive"
  assert basic["name"] == f"Image classifier for {name}"
  assert len(basic["publication_date"]) == len("2027-03-01")
  epsilon = receipt["follows"]["epsilon"]
  assert loss["privacy_parameters"] == {"epsilon": epsilon, "delta": 1e-5}
  said = loss["privacy_unit_details"]
  assert "one patient, with all its examples, is in" in said
  assert "REPLACE_SPECIAL" in said
  assert "1 x mean, 5 x gradient" in accounting["composition"]
  # What nobody but its publisher knows.
  assert text.count("FILL IN: ") == 7
