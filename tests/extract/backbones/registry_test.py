import hashlib
import pathlib

import jax
import numpy as np
import pytest

from configs.errors import InputError
from configs.schema import BackboneConfig, PreprocessConfig
from extract.backbones import random_patches, vit
from extract.backbones.registry import Backbone, backbone_names, load_backbone

SMALL = PreprocessConfig(image_size=16)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
  """An npz of random weights for vit_ti8 at 16 pixels."""
  model = vit.from_name("vit_ti8", "cls", "float32")
  assert model is not None
  shapes = vit.parameter_shapes(model, 16)
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp("weights") / "vit_ti8.npz"
  np.savez(
    path,
    allow_pickle=False,
    **{
      key: 0.05 * rng.standard_normal(shape, dtype=np.float32)
      for key, shape in shapes.items()
    },
  )
  return str(path)


def embed(backbone: Backbone, images: np.ndarray) -> np.ndarray:
  return np.asarray(jax.jit(backbone.apply)(backbone.params, images))


IMAGES = np.random.default_rng(0).integers(
  0, 256, (2, 16, 16, 3), dtype=np.uint8
)


@pytest.fixture(scope="module")
def backbone(weights) -> Backbone:
  return load_backbone(BackboneConfig(name="vit_ti8", weights=weights), SMALL)


@pytest.fixture(scope="module")
def embedding(backbone) -> np.ndarray:
  return embed(backbone, IMAGES)


def test_vit(backbone, embedding, weights):
  assert (backbone.name, backbone.layer) == ("vit_ti8", "encoder_norm/cls")
  data = pathlib.Path(weights).read_bytes()
  assert backbone.weights_sha256 == hashlib.sha256(data).hexdigest()
  assert embedding.shape == (2, backbone.feature_dim)
  assert embedding.dtype == np.float32
  for leaf in jax.tree.leaves(backbone.params):
    assert leaf.dtype == np.float32


@pytest.mark.parametrize(
  ("choice", "preprocess"),
  [
    ({"pooling": "mean"}, {}),
    ({"compute_dtype": "bfloat16"}, {}),
    ({}, {"mean": (0.9, 0.9, 0.9)}),
  ],
)
def test_every_choice_reaches_the_model(choice, preprocess, embedding, weights):
  other = load_backbone(
    BackboneConfig(name="vit_ti8", weights=weights, **choice),
    PreprocessConfig(image_size=16, **preprocess),
  )
  assert other.layer == f"encoder_norm/{choice.get('pooling', 'cls')}"
  difference = np.abs(embed(other, IMAGES) - embedding).max()
  assert difference > 1e-3 * np.abs(embedding).max()


def test_weights_of_another_backbone_name_both(weights):
  with pytest.raises(
    InputError,
    match="width 192 depth 12 patch 8; vit_b16 expects width 768 depth 12",
  ):
    load_backbone(BackboneConfig(name="vit_b16", weights=weights), SMALL)


def test_a_vit_needs_weights():
  with pytest.raises(InputError, match=r"vit_b16 needs.*backbone\.weights"):
    load_backbone(BackboneConfig(name="vit_b16"), SMALL)


def test_the_image_size_is_checked_before_the_weights_are_read():
  config = BackboneConfig(name="vit_b16", weights="absent.npz")
  with pytest.raises(InputError, match=r"image_size=40.*patch size 16"):
    load_backbone(config, PreprocessConfig(image_size=40))


@pytest.mark.parametrize(
  ("name", "hint"),
  [
    ("vit_b_16", "vit_b16"),
    ("ViT-B/16", "vit_"),
    ("vit_ti0", "vit_ti1"),
    ("random_patch", "random_patches"),
    ("resnet50", "random_patches"),
  ],
)
def test_an_unknown_name_gets_near_matches(name, hint):
  with pytest.raises(InputError) as caught:
    load_backbone(BackboneConfig(name=name), SMALL)
  assert repr(name) in str(caught.value)
  assert hint in str(caught.value).replace(repr(name), "")


def test_random_patches():
  backbone = load_backbone(
    BackboneConfig(name="random_patches"), PreprocessConfig(image_size=8)
  )
  assert backbone.feature_dim == random_patches.FEATURE_DIM
  assert len(backbone.weights_sha256) == 64
  images = np.zeros((3, 8, 8, 3), np.uint8)
  assert embed(backbone, images).shape == (3, backbone.feature_dim)


@pytest.mark.parametrize(
  "choice",
  [{"weights": "w.npz"}, {"pooling": "mean"}, {"compute_dtype": "bfloat16"}],
)
def test_random_patches_has_nothing_to_choose(choice):
  config = BackboneConfig(name="random_patches", **choice)
  with pytest.raises(InputError, match="nothing to choose"):
    load_backbone(config, SMALL)


def test_random_patches_refuses_an_image_below_its_grid():
  with pytest.raises(InputError, match="image_size=2"):
    load_backbone(
      BackboneConfig(name="random_patches"), PreprocessConfig(image_size=2)
    )


def test_every_pattern_that_is_listed_can_be_loaded():
  for pattern, line in backbone_names().items():
    name = pattern.replace("<patch>", "16")
    assert "\n" not in line
    model = vit.from_name(name, "cls", "float32")
    assert model is not None or name == "random_patches"
