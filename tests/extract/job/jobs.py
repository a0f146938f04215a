"""Small extraction jobs, of made-up images."""

import pathlib
from typing import Any

import numpy as np

from oneshot_dp.configs.extract_config import (
  ExtractConfig,
  PreprocessConfig,
  SourceConfig,
)
from tests.extract.sources.fixtures import encode_png

N = 70  # three shards of 32, 32 and 6; no multiple of a batch
CLASSES = ("cat", "dog", "ox")
BACKBONE = f"{pathlib.Path(__file__).with_name('backbone.py')}:embed"


def job_of(location: pathlib.Path, **changes: Any) -> ExtractConfig:
  settings = changes.pop("settings", {})
  fields: dict[str, Any] = {
    "source": SourceConfig(location=(str(location),), **settings),
    "backbone": BACKBONE,
    "preprocess": PreprocessConfig(image_size=8),
    "batch_size": 16,
    "shard_rows": 32,
  }
  return ExtractConfig(**fields | changes)


def write_folder(
  folder: pathlib.Path, n: int, bad=(), side: int = 8
) -> list[pathlib.Path]:
  """n images in folders of classes, in the order that they are listed in."""
  rng = np.random.default_rng(n)
  paths = []
  for i in range(n):
    image = encode_png(rng.integers(0, 256, (side, side, 3), np.uint8))
    path = folder / CLASSES[i * len(CLASSES) // n] / f"{i:04d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image[: 40 if i in bad else None])
    paths.append(path)
  return paths
