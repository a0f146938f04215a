import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oneshot_dp.extract.backbones.backbone import Architecture
from oneshot_dp.extract.backbones.registry import (
  parameter_shapes,
)
from oneshot_dp.extract.backbones.vit import families as vit
from oneshot_dp.extract.backbones.vit.network import VisionTransformer
from oneshot_dp.extract.images.preprocess import Preprocessing
from tests.extract.backbones.conv_cases import SOON
from tests.extract.refusals import refused

TINY = VisionTransformer(width=12, depth=2, mlp_dim=20, num_heads=3, patch=4)


def random_params(model: VisionTransformer, side: int) -> dict:
  rng = np.random.default_rng(0)
  return {
    key: 0.5 * rng.standard_normal(shape, dtype=np.float32)
    for key, shape in parameter_shapes(model, side).items()
  }


def run(model, flat: dict, images: np.ndarray) -> np.ndarray:
  tree = flax.traverse_util.unflatten_dict(flat, sep="/")
  apply = jax.jit(model.apply, compiler_options=SOON)
  return np.asarray(apply({"params": tree}, images))


@pytest.mark.slow
def test_embeddings_are_cut_from_the_same_tokens():
  """Those that the golden outputs do not have, by those that they do."""
  images = np.random.default_rng(1).uniform(-1, 1, (3, 12, 12, 3))
  flat = random_params(TINY, 12)
  found = {
    name: run(TINY.clone(embedding=name), flat, images.astype(np.float32))
    for name in ("cls", "mean", "cls_mean", "last1_cls", "last2_cls")
  }
  both = np.concatenate([found["cls"], found["mean"]], axis=-1)
  np.testing.assert_allclose(found["cls_mean"], both, atol=2e-5)
  np.testing.assert_allclose(found["last1_cls"], found["cls"], atol=2e-5)
  deepest = found["last2_cls"][:, TINY.width :]
  np.testing.assert_allclose(deepest, found["cls"], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"tokens": (), "mlp": "gelu_tanh", "embedding": "map"},
    {"layer_scale": True, "mlp": "swiglu", "embedding": "pre_logits"},
  ],
)
def test_bfloat16_rounds_products_only(changes):
  images = np.random.default_rng(1).uniform(-1, 1, (3, 12, 12, 3))
  images = images.astype(np.float32)
  model = TINY.clone(depth=1, **changes)
  flat = random_params(model, 12)
  exact = run(model, flat, images)
  halved = model.clone(compute_dtype="bfloat16")
  rounded = run(halved, flat, images)
  assert rounded.dtype == np.float32
  assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()
  # Kernels that come in bfloat16 already are the same numbers.
  half = {
    key: value.astype(jnp.bfloat16) if key.endswith("/kernel") else value
    for key, value in flat.items()
  }
  np.testing.assert_array_equal(run(halved, half, images), rounded)


def test_large_scores_do_not_overflow():
  model = TINY
  flat = random_params(model, 12)
  for key in flat:
    if "/query/" in key:
      flat[key] = flat[key] * 1e4
  images = np.random.default_rng(1).uniform(-1, 1, (1, 12, 12, 3))
  assert np.isfinite(run(model, flat, images.astype(np.float32))).all()


def named(name: str) -> Architecture:
  architecture = vit.find(name)
  assert architecture is not None
  return architecture


def test_other_names_mean_no_model():
  for name in [
    "vit_b",
    "vit_b016",
    "vit_g14",
    "xvit_b16",
    "deit_l16",
    "siglip_ti16",
    "b16",
  ]:
    assert vit.find(name) is None


@pytest.mark.parametrize(
  ("name", "embedding", "message"),
  [
    ("vit_b16", "pooled", "embedding=pooled is none .* vit_b16 has: use cls, "),
    ("vit_b16", "last<k>_cls", "is none that vit_b16 has"),
    ("vit_b16", "last13_cls", "13 blocks, which has 12: use last12_cls"),
    ("siglip_b16", "last2_cls", "siglip_b16 has: use map, mean"),
    ("dinov2_s14", "pre_logits", "use cls, mean, cls_mean, last<k>_cls"),
  ],
)
def test_an_embedding_that_is_not_there_is_refused(name, embedding, message):
  with refused(message):
    named(name).build(embedding, "float32")


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize(
  ("name", "reference"),
  [
    ("vit_l16", Preprocessing(image_size=224)),
    ("deit_s16", Preprocessing(image_size=224, resize=256, **IMAGENET)),
    ("dinov2_reg_l14", Preprocessing(image_size=224, resize=256, **IMAGENET)),
    ("siglip_b16", Preprocessing(image_size=224)),
    ("siglip_l16", Preprocessing(image_size=256)),
    ("siglip_so400m14", Preprocessing(image_size=384)),
  ],
)
def test_the_preprocessing_is_the_family_s(name, reference):
  assert named(name).reference == reference


@pytest.mark.parametrize("side", [8, 225])
def test_an_image_that_patches_do_not_tile_is_refused(side):
  model = named("deit_b16").build("cls", "float32")
  near = {8: "16", 225: "224 or 240"}[side]
  with refused(rf"={side}.*size 16: use {near}\."):
    parameter_shapes(model, side)


def test_a_vit_leaves_out_what_fills_no_patch():
  """As the published code does: the paper's ViT-H/14 at 256 pixels."""
  model = named("vit_ti14").build("cls", "float32")
  for side in (256, 252):
    shapes = parameter_shapes(model, side)
    assert shapes["pos_embedding"] == (1, 18**2, 192)
