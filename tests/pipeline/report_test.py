import pytest
from PIL import Image

from pipeline.report import plot_accuracy
from tests.pipeline.results_test import ROWS, baseline, row


@pytest.mark.parametrize(
  "rows",
  [
    ROWS,
    [*ROWS, baseline()],
    ROWS[:1],
    [row(1.0, 0, 0.5, noise_source="seeded: NOT PRIVATE", private=False)],
    [row(1.0, 0, 0.0), row(2.0, 0, 1.0)],
  ],
  ids=["seeds", "baseline", "one head", "seeded", "extremes"],
)
def test_the_pictures_can_be_opened(tmp_path, rows):
  plot_accuracy(rows, "pets", tmp_path)
  with Image.open(tmp_path / "accuracy.png") as image:
    image.load()
    assert image.format == "PNG"
    assert image.size == (960, 630)
    assert len(image.convert("RGB").getcolors(10**6) or []) > 10
  assert (tmp_path / "accuracy.pdf").read_bytes().startswith(b"%PDF-")
  assert len(list(tmp_path.iterdir())) == 2


def test_the_same_rows_give_the_same_files(tmp_path):
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    plot_accuracy([*ROWS, baseline()], "pets", tmp_path / name)
  for file in ("accuracy.png", "accuracy.pdf"):
    assert (tmp_path / "a" / file).read_bytes() == (
      tmp_path / "b" / file
    ).read_bytes()


def test_a_picture_without_privacy_says_so(tmp_path):
  """The words themselves are drawn; without them the picture is another."""
  plain, seeded = tmp_path / "plain", tmp_path / "seeded"
  for folder, source in (
    (plain, "os.urandom"),
    (seeded, "seeded: NOT PRIVATE"),
  ):
    folder.mkdir()
    plot_accuracy([row(1.0, 0, 0.5, noise_source=source)], "pets", folder)
  assert (plain / "accuracy.png").read_bytes() != (
    seeded / "accuracy.png"
  ).read_bytes()
