"""Heads on embeddings of images, by the backbone that comes along."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import oneshot_dp
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.extract.backbones.backbone import Backbone, load_backbone
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.images import resize_and_crop
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.pipeline.heads.head_folder import (
  SavedHead,
  read_head,
  write_head,
)

_BATCH = 40
ROOT = pathlib.Path(__file__).parents[2]


@functools.cache
def digits(split: str = "test") -> tuple[np.ndarray, np.ndarray]:
  """Images [n, 8, 8, 1] uint8 and their labels."""
  with np.load(ROOT / "configs" / "digits.npz") as file:
    return file[f"{split}_image"], file[f"{split}_label"]


def shown(backbone: Backbone, images: np.ndarray) -> np.ndarray:
  """Images [n, h, w, 1 or 3] as the network sees them."""
  pixels = np.broadcast_to(images, (*images.shape[:3], 3))
  return np.stack([resize_and_crop(p, backbone.preprocessing) for p in pixels])


def embeddings(backbone: Backbone, images: np.ndarray) -> np.ndarray:
  """Of images [n, h, w, 1 or 3]; compiled for one size of batches."""
  seen = shown(backbone, images)
  apply = jax.jit(backbone.apply)
  found = []
  for start in range(0, len(seen), _BATCH):
    batch = seen[start : start + _BATCH]
    full = np.pad(batch, [(0, _BATCH - len(batch)), *[(0, 0)] * 3])
    found.append(apply(backbone.params, jnp.asarray(full))[: len(batch)])
  return np.concatenate(found)


@functools.cache
def glyph_vit() -> Backbone:
  return load_backbone("glyph_vit", compute_dtype="float32")


def write_image_head(
  folder: pathlib.Path,
  backbone: Backbone | None = None,
  head: HeadName = "auto",
) -> SavedHead:
  """A private head of digits; without its ledger."""
  backbone = backbone or glyph_vit()
  images, labels = digits()
  made = oneshot_dp.train_head(
    embeddings(backbone, images),
    labels,
    num_classes=10,
    epsilon=8.0,
    delta=1e-3,
    head=head,
  )
  info = CacheInfo(
    dataset="digits",
    split="train",
    source_num_examples=len(labels),
    feature_dim=backbone.feature_dim,
    class_names=tuple("0123456789"),
    backbone=backbone.identity,
  )
  write_head(folder, made.trained, info)
  return read_head(folder)


def write_images(folder: pathlib.Path, count: int = 100) -> list[str]:
  """PNG files of digits, in the order of their names."""
  folder.mkdir(parents=True, exist_ok=True)
  names = []
  for i, image in enumerate(digits()[0][:count]):
    names.append(f"{i:03}.png")
    Image.fromarray(image[..., 0]).save(folder / names[-1])
  return names


def classes_of(head: LinearHead, embedding: np.ndarray) -> list[int]:
  """By NumPy in float64: what every program must say."""
  x = embedding.astype(np.float64)
  if head.unit_norm:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
  logits = x @ np.asarray(head.kernel, np.float64) + np.asarray(head.bias)
  return logits.argmax(axis=1).tolist()
