"""From a messy folder of photographs to a model that serves elsewhere."""

import csv
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.pipeline.command_line import fails, succeeds

CLASSES = ("cat", "dog", "owl")
EXTRACT = (
  "extract folder_vit_b16 --source.root photos --backbone.name glyph_vit"
  " --split {part} --out caches/{name}"
)
# Torch and transformers; of ours there is nothing in either process.
HUGGING_FACE = "ONESHOT_DP_TRANSFORMERS_PYTHON"


def photograph(kind: int, rng: np.random.Generator) -> Image.Image:
  """Bars as wide as their class, of a size, colour and noise of its own.

  Its sides are as 4 to 3, where transformers rounds them as we do.
  """
  short = 3 * rng.integers(14, 30)
  height, width = rng.permutation([short, short // 3 * 4])
  phase = np.arange(width) // (2 + 4 * kind) % 2
  pixels = np.full((height, width, 3), rng.integers(150, 250, 3), float)
  pixels[:, phase == 1] = rng.integers(0, 100, 3)
  pixels += rng.normal(0, 20, pixels.shape)
  return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
  """As an archive leaves it."""
  rng = np.random.default_rng(0)
  for kind, name in enumerate(CLASSES):
    for place, count in (("photos", 50), ("new", 4)):
      (tmp_path / place / name).mkdir(parents=True)
      for i in range(count):
        suffix = "jpg" if i % 2 else "png"
        file = tmp_path / place / name / f"{i:03d}.{suffix}"
        photograph(kind, rng).save(file)
  for name, content in {
    "__MACOSX/cat/._000.png": b"litter",
    ".DS_Store": b"litter",
    "dog/notes.txt": b"walks",
    "cat/half.jpg": b"\xff\xd8\xff",
    "owl/empty.png": b"",
  }.items():
    file = tmp_path / "photos" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
  (tmp_path / "photos/bat").mkdir()
  monkeypatch.setenv("ONESHOT_DP_WEIGHTS_DIR", str(tmp_path / "weights"))
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.slow
def test_photographs_become_a_model_that_serves_elsewhere(folder, capsys):
  def types(line: str) -> str:
    return succeeds(capsys, *shlex.split(line))[0]

  def predicted() -> list[str]:
    with open("predictions.csv", newline="") as file:
      return [row["class"] for row in csv.DictReader(file)]

  broken = ("cat/half.jpg", "owl/empty.png")
  said = types("inspect photos")
  assert re.search(r"^bat +0 +no image, an error$", said, re.M)
  assert all(f"  {name}: " in said for name in broken)
  assert "  dog/notes.txt\n" in said
  assert "MACOSX" not in said
  train = EXTRACT.format(part="all[:80%]", name="train")
  assert "classes without an image: 'bat'" in fails(
    capsys, *train.split(), "--quiet"
  )
  (folder / "photos/bat").rmdir()
  said = fails(capsys, *train.split(), "--quiet")
  assert all(f"photos/{name}" in said for name in broken)
  for name in broken:
    (folder / "photos" / name).unlink()
  shutil.rmtree("caches/train")
  types(train)
  types(EXTRACT.format(part="all[80%:]", name="test"))
  head = "heads/epsilon-8"
  asked = f"--epsilon 8 --delta 1e-5 --head lamb --out {head}"
  types(f"train --cache caches/train {asked}")
  types(f"predict {head} new --out predictions.csv")
  types(f"export {head} --to model --eval-cache caches/test")
  classes = predicted()
  assert len(classes) == 12
  assert len(set(classes)) > 1

  images = sorted((folder / "new").rglob("*.*"))
  card = (folder / "model/README.md").read_text()
  snippets = re.findall(r"```python\n(.*?)```", card, re.S)
  pythons = {"jax": sys.executable}
  if other := os.environ.get(HUGGING_FACE):
    pythons["transformers"] = other
  for library, python in pythons.items():
    (snippet,) = (s for s in snippets if library in s)
    setup, body = re.split(r"(?=^image = ImageOps)", snippet, flags=re.M)
    body = body.replace('"image.jpg"', "file")
    script = f"import sys\n{setup}for file in sys.argv[1:]:\n"
    script += "".join(f"  {line}\n" for line in body.splitlines())
    done = subprocess.run(
      [python, "-c", script, *images],
      cwd=folder / "model",
      capture_output=True,
      text=True,
      check=False,
      env=os.environ | {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == classes, library
