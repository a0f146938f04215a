"""Small image data sets and extraction jobs for the tests of the job."""

import pathlib
from collections.abc import Collection
from typing import Any

import numpy as np
from PIL import Image

from oneshot_dp.configs.extract_config import (
  ArraysSource,
  BackboneConfig,
  ExtractConfig,
  ImageFolderSource,
  PreprocessConfig,
  Source,
  TableSource,
)
from oneshot_dp.extract.cache import block
from oneshot_dp.extract.cache.reader import FeatureCache

SIDE = 8
CLASSES = ("cat", "dog", "owl")


def pixels(n: int, side: int = SIDE) -> np.ndarray:
  """[n, side, side, 3] uint8, always the same."""
  rng = np.random.default_rng(n)
  return rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def labels(n: int) -> np.ndarray:
  return np.random.default_rng(n + 1).integers(0, len(CLASSES), n)


def write_npz(path: pathlib.Path, n: int) -> pathlib.Path:
  """Images with ids that are not their rows."""
  np.savez(
    path,
    image=pixels(n),
    label=labels(n),
    example_id=example_ids(n),
    class_names=np.array(CLASSES),
  )
  return path


def example_ids(n: int) -> np.ndarray:
  return 1000 + 7 * np.arange(n)[::-1]


def write_folder(
  root: pathlib.Path, n: int, side: int = SIDE, bad: Collection[int] = ()
) -> list[pathlib.Path]:
  """PNG files, returned in the order of their ids; `bad` ones are damaged."""
  files = []
  for i, image in enumerate(pixels(n, side)):
    name = CLASSES[i * len(CLASSES) // n]
    file = root / name / f"{i:05d}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(file)
    if i in bad:
      damage(file)
    files.append(file)
  return files


def damage(image: pathlib.Path) -> bytes:
  """Cuts an image file short; returns what it was."""
  whole = image.read_bytes()
  image.write_bytes(whole[: len(whole) // 2])
  return whole


def array_job(path: pathlib.Path, **changes: Any) -> ExtractConfig:
  return _job(ArraysSource(path=str(path)), **changes)


def folder_job(root: pathlib.Path, **changes: Any) -> ExtractConfig:
  source = ImageFolderSource(root=str(root))
  return _job(source, **{"split": "all"} | changes)


def table_job(
  path: pathlib.Path, class_names: tuple[str, ...] = (), **changes: Any
) -> ExtractConfig:
  source = TableSource(path=str(path), class_names=class_names)
  return _job(source, **{"split": "all"} | changes)


def _job(source: Source, **changes: Any) -> ExtractConfig:
  fields: dict[str, Any] = {
    "source": source,
    "backbone": BackboneConfig(name="random_patches"),
    "preprocess": PreprocessConfig(image_size=SIDE),
    "batch_size": 16,
    "embedding_dtype": "float32",
    "shard_rows": 32,
    "decode_threads": 2,
  }
  return ExtractConfig(**fields | changes)


def columns(cache: FeatureCache) -> dict[str, np.ndarray]:
  """All rows of a cache, in its order."""
  blocks = [block.columns(each) for each in cache.blocks()]
  return {n: np.concatenate([b[n] for b in blocks]) for n in blocks[0]}
