"""A head of small images, and the images in every form."""

import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from oneshot_dp.pipeline.cli import main
from tests.extract import image_jobs
from tests.extract.tables import png
from tests.pipeline.command_line import CONFIG

N = 40


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> pathlib.Path:
  """`head`, trained on photos, and other photos in every form."""
  folder = tmp_path_factory.mktemp("serving")
  (folder / "config.py").write_text(CONFIG)
  image_jobs.write_npz(folder / "private.npz", 200)
  extract(folder, "private.npz", "train")
  ledgers = ["--ledger-dir", str(folder / "ledgers")]
  steps = ["--head", "multi-step", "--steps.epochs", "3"]
  for name, options in {"unit_norm": steps, "lamb": ["--head", "lamb"]}.items():
    words = ["train", "--cache", folder / "train", "--epsilon", 8]
    words += ["--delta", 1e-5, "--out", folder / name, *options, *ledgers]
    assert main([str(word) for word in words]) == 0
  images = image_jobs.pixels(N)
  np.savez(folder / "images.npz", image=images)
  # In the order of the npz, by name.
  for i, image in enumerate(images):
    file = folder / "photos" / f"{i // 10}" / f"{i:03d}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(file)
  structs = [{"bytes": png(image), "path": None} for image in images]
  table = pa.table({"image": structs, "other": np.arange(N)})
  pa.parquet.write_table(table, folder / "structs.parquet", row_group_size=16)
  return folder


def extract(folder: pathlib.Path, npz: str, out: str) -> None:
  words = ["extract", folder / "config.py", "--source.path", folder / npz]
  words += ["--split", "train", "--out", folder / out]
  words += ["--embedding-dtype", "float16"]
  assert main([str(word) for word in words]) == 0
