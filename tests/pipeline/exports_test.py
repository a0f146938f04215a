"""What `export` writes for other libraries, and what its card says."""

import os
import pathlib
from typing import NamedTuple

import pytest
from jax import export

from oneshot_dp.pipeline.exports import HEAD_FILE, IMAGES_FILE, export_head
from oneshot_dp.pipeline.heads.head_folder import read_head, write_head
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline import image_heads
from tests.pipeline.command_line import fails, prints, succeeds
from tests.pipeline.sample_heads import sample_info, trained_head


class Exported(NamedTuple):
  """A head, the folder of its export, and what was printed."""

  head: pathlib.Path
  folder: pathlib.Path
  stdout: str

  @property
  def card(self) -> str:
    return (self.folder / "README.md").read_text()


@pytest.fixture(scope="module")
def exported_digits(tmp_path_factory, digits_head) -> Exported:
  """A head of digits with its backbone, exported where no ledger is."""
  folder = tmp_path_factory.mktemp("exports")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("ONESHOT_DP_LEDGER", str(folder / "no ledger"))
    stdout, _ = prints("export", digits_head.path, "--to", folder / "model")
  return Exported(digits_head.path, folder / "model", stdout)


@pytest.fixture(scope="module")
def charged_ledger(tmp_path_factory) -> pathlib.Path:
  """The ledger that charged the head of `exported_charged`."""
  return tmp_path_factory.mktemp("ledgers") / "ledger.sqlite"


@pytest.fixture(scope="module")
def exported_charged(tmp_path_factory, train_cache, charged_ledger) -> Exported:
  """A head of imported features, exported with the ledger that charged it."""
  folder = tmp_path_factory.mktemp("exports")
  ledger = ("--ledger", charged_ledger)
  prints(
    *("train", "--cache", train_cache.path, "--epsilon", 1, "--delta", 1e-3),
    *("--head", "lamb", "--out", folder / "head", *ledger),
  )
  stdout, _ = prints(
    "export", folder / "head", "--to", folder / "model", *ledger
  )
  return Exported(folder / "head", folder / "model", stdout)


# The programs.


def read_program(file):
  return export.deserialize(bytearray(file.read_bytes()))


@pytest.fixture(scope="module")
def hundred_digits():
  return image_heads.digits()[0][:100]


@pytest.fixture(scope="module")
def hundred_embeddings(hundred_digits):
  return image_heads.embeddings(image_heads.glyph_vit(), hundred_digits)


@pytest.fixture(scope="module")
def hundred_classes(digits_head, hundred_embeddings):
  """The classes that the head gives 100 digits, computed by NumPy."""
  return image_heads.classes_of(digits_head.head, hundred_embeddings)


@pytest.mark.slow
def test_program_of_images_gives_the_classes_of_the_head(
  exported_digits, hundred_digits, hundred_classes
):
  pixels = image_heads.shown(image_heads.glyph_vit(), hundred_digits)

  logits = read_program(exported_digits.folder / IMAGES_FILE).call(pixels)

  assert logits.argmax(axis=1).tolist() == hundred_classes


@pytest.mark.slow
def test_program_of_embeddings_gives_the_classes_of_the_head(
  exported_digits, hundred_embeddings, hundred_classes
):
  program = read_program(exported_digits.folder / HEAD_FILE)

  logits = program.call(hundred_embeddings)

  assert logits.argmax(axis=1).tolist() == hundred_classes


@pytest.mark.slow
def test_program_of_images_is_for_cpu_cuda_and_tpu(exported_digits):
  program = read_program(exported_digits.folder / IMAGES_FILE)

  assert program.platforms == ("cpu", "cuda", "tpu")


@pytest.mark.slow
def test_program_of_images_has_no_path_of_the_machine_that_made_it(
  exported_digits,
):
  content = (exported_digits.folder / IMAGES_FILE).read_bytes()

  assert str(pathlib.Path(__file__).parents[2]).encode() not in content


@pytest.mark.slow
def test_code_on_the_card_prints_the_class_of_one_image(
  exported_digits, digits_photos, hundred_classes
):
  """Of one, so that the program takes any size of batches."""
  _, _, code = exported_digits.card.partition("```python\nimport pathlib")
  code, _, _ = code.partition("```")
  model = exported_digits.folder
  code = code.replace('pathlib.Path("', f'pathlib.Path("{model}/')
  code = code.replace("image.jpg", f"{digits_photos}/000.png")
  printed = []

  exec(f"import pathlib{code}", {"print": printed.append})

  assert printed == [str(hundred_classes[0])]


def test_head_of_imported_features_is_exported_alone_with_the_reason(
  exported_charged,
):
  assert "imported features" in exported_charged.stdout
  assert "give a cache" not in exported_charged.stdout  # no export takes one
  assert HEAD_FILE in exported_charged.stdout
  assert not (exported_charged.folder / IMAGES_FILE).exists()


# The card.


@pytest.mark.slow
def test_card_begins_with_the_library_and_states_the_epsilon(exported_digits):
  assert exported_digits.card.startswith("---\nlibrary_name: jax\n")
  assert "epsilon = 8" in exported_digits.card


@pytest.mark.slow
def test_card_of_an_export_without_a_ledger_says_not_verified(exported_digits):
  assert IMAGES_FILE in exported_digits.stdout
  assert "**Not verified: no ledger was at hand.**" in exported_digits.card


def test_export_of_a_head_that_the_ledger_does_not_know_says_not_verified(
  tmp_path, capsys, charged_ledger, exported_charged
):
  write_head(tmp_path / "head", trained_head(), sample_info())

  stdout, _ = succeeds(
    capsys,
    *("export", tmp_path / "head", "--to", tmp_path / "model"),
    *("--ledger", charged_ledger),
  )

  assert "NOT VERIFIED" in stdout
  assert "**NOT VERIFIED" in (tmp_path / "model" / "README.md").read_text()


def test_export_of_a_head_that_the_ledger_charged_says_nothing_of_it(
  exported_charged,
):
  printed = exported_charged.stdout + exported_charged.card

  assert "VERIFIED" not in printed
  assert "Not verified" not in printed


@pytest.mark.parametrize(
  "words", ["take this folder", "load_head", "`oneshot-dp verify` on this"]
)
def test_card_of_a_copy_does_not_call_it_a_head_folder(exported_charged, words):
  head_card = (exported_charged.head / "README.md").read_text()

  assert words in head_card
  assert words not in exported_charged.card


def test_card_of_a_copy_has_no_path_of_the_machine_that_made_it(
  tmp_path, exported_charged
):
  head = exported_charged.head
  verdict = verify_head(head, Ledger(tmp_path / "ledger"))
  reason = f"{tmp_path}/weights.npz cannot be read: Permission denied."

  _, notes = export_head(tmp_path / "model", read_head(head), verdict, reason)

  card = (tmp_path / "model" / "README.md").read_text()
  assert notes == [reason]
  assert str(tmp_path) not in card
  assert "The backbone was not at hand" in card


# The folder.


def test_export_is_on_the_disk_before_it_is_in_view(
  tmp_path, exported_charged, monkeypatch
):
  synced = []

  def record(handle):
    synced.append(os.readlink(f"/proc/self/fd/{handle}"))

  monkeypatch.setattr(os, "fsync", record)
  head = exported_charged.head
  verdict = verify_head(head, Ledger(tmp_path / "ledger"))

  export_head(tmp_path / "model", read_head(head), verdict, "no backbone")

  staging = tmp_path / ".model.unfinished" / "whole"
  names = [file.name for file in (tmp_path / "model").iterdir()]
  before_rename = synced[: synced.index(str(staging)) + 1]
  assert {str(staging / name) for name in names} <= set(before_rename)


def test_export_into_a_folder_that_exists_is_refused_and_changes_nothing(
  tmp_path, capsys, exported_charged
):
  out = tmp_path / "model"
  out.mkdir()

  line = fails(capsys, "export", exported_charged.head, "--to", out)

  assert "already exists" in line
  assert list(out.iterdir()) == []


def test_export_that_fails_leaves_nothing(
  tmp_path, capsys, exported_charged, monkeypatch
):
  write = pathlib.Path.write_bytes

  def write_until_the_disk_is_full(self, data):
    if self.name == "receipt.json":
      raise OSError(28, "No space left on device")
    return write(self, data)

  monkeypatch.setattr(pathlib.Path, "write_bytes", write_until_the_disk_is_full)

  line = fails(
    capsys,
    *("export", exported_charged.head, "--to", tmp_path / "model"),
    status=1,
  )

  assert "No space left" in line
  assert list(tmp_path.iterdir()) == []


# The draft for the Deployments Registry: tier 3 of its schema.


class Draft(NamedTuple):
  """deployment.yaml of a head: its text, what YAML reads, and the receipt."""

  text: str
  record: dict
  receipt: dict

  def section(self, name: str) -> dict:
    return self.record["deployment"][name]


ODD_NAME = 'a: "b"\\ #'
SECTIONS = (
  "basic",
  "dp_variant",
  "privacy_loss",
  "deployment_model",
  "accounting",
  "implementation",
  "administrative",
)


@pytest.fixture(scope="module")
def draft(tmp_path_factory) -> Draft:
  """Of a head whose names mean something else in YAML."""
  yaml = pytest.importorskip("yaml")
  folder = tmp_path_factory.mktemp("registry")
  info = sample_info(
    unit="patient", dataset=ODD_NAME, class_names=("x", "- y", "z")
  )
  receipt = write_head(folder / "head", trained_head(2.0), info)
  prints("export", folder / "head", "--to", folder / "model", "--registry")
  text = (folder / "model" / "deployment.yaml").read_text()
  return Draft(text, yaml.safe_load(text), receipt)


def test_registry_draft_has_the_sections_of_tier_3(draft):
  assert (draft.record["status"], draft.record["tier"]) == ("Draft", 3)
  assert tuple(draft.record["deployment"]) == SECTIONS


@pytest.mark.parametrize(
  ("section", "field", "value"),
  [
    ("basic", "data_product_type", "Machine learning model"),
    ("dp_variant", "variant_name", "Approximate DP"),
    ("deployment_model", "model_name", "Central"),
    ("deployment_model", "release_type", "One release"),
    ("deployment_model", "data_source_type", "Static"),
    ("deployment_model", "access_type", "Non-interactive"),
  ],
)
def test_registry_draft_has_a_word_of_each_closed_list(
  draft, section, field, value
):
  assert draft.section(section)[field] == value


def test_registry_draft_names_the_data_set_whatever_its_letters(draft):
  assert draft.section("basic")["name"] == f"Image classifier for {ODD_NAME}"


def test_registry_draft_has_a_date_of_publication(draft):
  date = draft.section("basic")["publication_date"]

  assert len(date) == len("2027-03-01")


def test_registry_draft_states_the_guarantee_of_the_receipt(draft):
  assert draft.section("privacy_loss")["privacy_parameters"] == {
    "epsilon": draft.receipt["follows"]["epsilon"],
    "delta": 1e-5,
  }


def test_registry_draft_says_who_is_protected(draft):
  loss = draft.section("privacy_loss")

  assert loss["privacy_unit"] == "patient"
  details = loss["privacy_unit_details"]
  assert "one patient, with all its examples, is in" in details
  assert "REPLACE_SPECIAL" in details


def test_registry_draft_lists_the_releases(draft):
  composition = draft.section("accounting")["composition"]

  assert "1 x mean, 5 x gradient" in composition


def test_registry_draft_leaves_open_what_only_its_publisher_knows(draft):
  assert draft.text.count("FILL IN: ") == 7
