import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.datasets

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ComputeDtype,
  PreprocessConfig,
)
from oneshot_dp.extract.backbones.backbone import Architecture
from oneshot_dp.extract.backbones.registry import (
  load_backbone,
  parameter_shapes,
)
from oneshot_dp.extract.backbones.vit import families as vit
from oneshot_dp.extract.backbones.vit.network import VisionTransformer
from oneshot_dp.extract.images.preprocess import Preprocessing, prepare
from tests.extract.backbones.conv_cases import SOON, cosine

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


@pytest.mark.parametrize(
  "name",
  [
    "vit_b",
    "vit_b016",
    "vit_g14",
    "xvit_b16",
    "deit_l16",
    "siglip_ti16",
    "b16",
  ],
)
def test_other_names_mean_no_model(name):
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
  with pytest.raises(InputError, match=message):
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
  with pytest.raises(
    InputError, match=rf"image_size={side}.*patch size 16: use {near}\."
  ):
    parameter_shapes(model, side)


@pytest.mark.parametrize(("side", "tokens"), [(256, 18**2), (252, 18**2)])
def test_a_vit_leaves_out_what_fills_no_patch(side, tokens):
  """As the published code does: the paper's ViT-H/14 at 256 pixels."""
  model = named("vit_ti14").build("cls", "float32")
  shapes = parameter_shapes(model, side)
  assert shapes["pos_embedding"] == (1, tokens, 192)


@pytest.fixture(scope="module")
def weights(shared_data) -> str:
  return str(shared_data / "vit_ti16_in1k.npz")


def embed(
  weights: str,
  images: np.ndarray | list[np.ndarray],
  compute_dtype: ComputeDtype = "float32",
  side: int = 224,
) -> np.ndarray:
  backbone = load_backbone(
    BackboneConfig(
      name="vit_ti16", weights=weights, compute_dtype=compute_dtype
    ),
    PreprocessConfig(image_size=side),
  )
  squares = [prepare(image, backbone.preprocessing) for image in images]
  batches = np.split(np.stack(squares), range(16, len(squares), 16))
  apply = jax.jit(backbone.apply, compiler_options=SOON)
  return np.concatenate([apply(backbone.params, b) for b in batches])


@pytest.mark.slow
def test_bfloat16_embeddings_stay_close(weights, shared_data):
  """(In float32 they are those of others: embedding_parity_test.)"""
  with (
    np.load(shared_data / "cifar10_images.npz") as images,
    np.load(shared_data / "cifar10_images_vit_ti16_embedding.npz") as other,
  ):
    image = images["train_image"][:16]
    expected = other["train_embedding"][:16]
  got = embed(weights, image, compute_dtype="bfloat16")
  similarity = cosine(got, expected)
  # Measured on 1,200 rows: 0.9996 and 0.99993.
  assert similarity.min() >= 0.999
  assert np.median(similarity) >= 0.9998


@pytest.mark.slow
def test_another_resolution_gives_similar_embeddings(weights):
  # Measured: 0.96; with the positions of the patches shuffled 0.62. Bicubic
  # and half-pixel grids gain less than 0.01.
  photographs = sklearn.datasets.load_sample_images().images
  similarity = cosine(
    embed(weights, photographs), embed(weights, photographs, side=256)
  )
  assert similarity.min() > 0.9
