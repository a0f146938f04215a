import dataclasses
import hashlib
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import BackboneConfig, PreprocessConfig
from oneshot_dp.extract.backbones import random_patches
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.backbones.registry import (
  backbone_names,
  find_architecture,
  load_backbone,
  parameter_shapes,
  resolved,
)
from oneshot_dp.extract.backbones.vit import families
from tests.extract.backbones.conv_cases import SOON
from tests.extract.refusals import refused

SMALL = PreprocessConfig(image_size=16)


@pytest.fixture(autouse=True, scope="module")
def _two_blocks():
  """In a vit_ti, not twelve: they are traced and compiled many times."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(families._TI, "depth", 2)
    yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
  """An npz of random weights for vit_ti8 at 16 pixels."""
  module = find_architecture("vit_ti8").build("cls", "float32")
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp("weights") / "vit_ti8.npz"
  np.savez(
    path,
    allow_pickle=False,
    **{
      key: 0.05 * rng.standard_normal(shape, dtype=np.float32)
      for key, shape in parameter_shapes(module, 16).items()
    },
  )
  return str(path)


def embed(backbone: Backbone, images: np.ndarray) -> np.ndarray:
  apply = jax.jit(backbone.apply, compiler_options=SOON)
  return np.asarray(apply(backbone.params, images))


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
  assert (backbone.name, backbone.embedding) == ("vit_ti8", "cls")
  data = pathlib.Path(weights).read_bytes()
  assert backbone.weights_sha256 == hashlib.sha256(data).hexdigest()
  assert embedding.shape == (2, backbone.feature_dim)
  assert embedding.dtype == np.float32
  for leaf in jax.tree.leaves(backbone.params):
    assert leaf.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize(
  ("choice", "preprocess"),
  [
    ({"embedding": "mean"}, {}),
    ({"compute_dtype": "bfloat16"}, {}),
    ({}, {"mean": (0.9, 0.9, 0.9)}),
  ],
)
def test_every_choice_is_taken(
  choice, preprocess, backbone, embedding, weights
):
  other = load_backbone(
    BackboneConfig(name="vit_ti8", weights=weights, **choice),
    PreprocessConfig(image_size=16, **preprocess),
  )
  assert other.embedding == choice.get("embedding", "cls")
  difference = np.abs(embed(other, IMAGES) - embedding).max()
  assert difference > 1e-3 * np.abs(embedding).max()
  if "compute_dtype" in choice:  # of products, not of kernels alone
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), other.params)
    of_kernels = embed(dataclasses.replace(backbone, params=params), IMAGES)
    difference = np.abs(embed(other, IMAGES) - of_kernels).max()
    assert difference > 1e-4 * np.abs(embedding).max()


@pytest.mark.parametrize("name", ["vit_ti8", "random_patches"])
def test_what_is_loaded_again_is_not_compiled_again(name, weights):
  own = weights if name == "vit_ti8" else None
  config = BackboneConfig(name=name, weights=own)
  first, again = (load_backbone(config, SMALL) for _ in range(2))
  assert again.apply is first.apply
  larger = load_backbone(config, PreprocessConfig(image_size=32))
  assert larger.apply is not first.apply


@pytest.mark.parametrize(
  ("config", "side", "message"),
  [
    ({"name": "vit_b16"}, 16, r"vit_b16 needs.*backbone\.weights"),
    # Before the weights are read.
    ({"name": "vit_b16", "weights": "absent.npz"}, 8, "image_size=8.*size 16"),
    ({"name": "random_patches"}, 2, "image_size=2"),
    ({"name": "random_patches", "weights": "w.npz"}, 16, "nothing to choose"),
    ({"name": "random_patches", "embedding": "mean"}, 16, "nothing to choose"),
    ({"name": "random_patches", "compute_dtype": "bfloat16"}, 16, "nothing to"),
  ],
)
def test_what_does_not_fit_the_backbone_is_refused(config, side, message):
  with refused(message):
    load_backbone(BackboneConfig(**config), PreprocessConfig(image_size=side))


@pytest.mark.parametrize(
  ("name", "hint"),
  [
    ("vit_b_16", "vit_b16"),
    ("ViT-B/16", "vit_"),
    ("vit_ti0", "vit_ti1"),
    ("random_patch", "random_patches"),
    ("resnet50", "nf_resnet50"),
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
  assert len(backbone.weights_sha256 or "") == 64
  images = np.zeros((3, 8, 8, 3), np.uint8)
  assert embed(backbone, images).shape == (3, backbone.feature_dim)


@pytest.mark.parametrize("name", backbone_names()[:-1])
def test_every_name_that_is_listed_is_found(name):
  architecture = find_architecture(name)
  assert architecture.name == name
  assert "\n" not in architecture.summary
  first = dict.fromkeys(("vit", "deit", "dinov2"), "cls")
  first |= {"siglip": "map", "glyph": "pre_logits"}
  assert architecture.embeddings[0] == first.get(name.split("_")[0], "pooled")
  for embedding in architecture.embeddings:
    architecture.build(embedding.replace("<k>", "2"), "bfloat16")
  with refused("nonsense"):
    architecture.build("nonsense", "float32")


def test_the_compute_dtype_is_that_of_the_devices_here():
  assert jax.default_backend() == "cpu"
  config = BackboneConfig(name="vit_b16")
  assert resolved(config).compute_dtype == "float32"
  chosen = BackboneConfig(name="vit_b16", compute_dtype="bfloat16")
  assert resolved(chosen) is chosen
  for own in ("random_patches", "mine.py:embed"):
    assert resolved(BackboneConfig(name=own)).compute_dtype is None


@pytest.mark.slow
def test_in_bfloat16_kernels_take_half_the_memory(weights):
  backbone = load_backbone(
    BackboneConfig(name="vit_ti8", weights=weights, compute_dtype="bfloat16"),
    SMALL,
  )
  leaves = jax.tree_util.tree_leaves_with_path(backbone.params)
  for path, leaf in leaves:
    kernel = path[-1].key == "kernel"
    assert leaf.dtype == (ml_dtypes.bfloat16 if kernel else np.float32)
  assert any(path[-1].key == "kernel" for path, _ in leaves)
  as_read = load_backbone(
    BackboneConfig(name="vit_ti8", weights=weights), SMALL
  ).params
  np.testing.assert_array_equal(
    embed(backbone, IMAGES),
    embed(dataclasses.replace(backbone, params=as_read), IMAGES),
  )


def test_a_pinned_hash_is_checked(weights, backbone):
  for sha256 in (backbone.weights_sha256, "0" * 64):
    pinned = {"weights": weights, "weights_sha256": sha256}
    config = BackboneConfig(name="vit_ti8", **pinned)
    if sha256 == backbone.weights_sha256:
      assert load_backbone(config, SMALL).weights_sha256 == sha256
    else:
      with refused("0000"):
        load_backbone(config, SMALL)
