"""The networks against the outputs of timm and others, and their parts."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneshot_dp.extract.backbones import vit
from oneshot_dp.extract.backbones.backbone import apply_function
from oneshot_dp.extract.backbones.family import FAMILIES
from oneshot_dp.extract.backbones.google_names import to_timm_names
from oneshot_dp.extract.backbones.names import backbone_spec
from oneshot_dp.extract.backbones.resnet_v2 import (
  Convolution,
  GroupNorm,
  standardize,
)
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.weights import check_arrays
from tests.extract.backbones import drawn

SIDES = st.integers(1, 40)
ONE_OF_EACH_KIND = [
  "timm/vit/24/cls",
  "timm/siglip/24/map",
  "timm/dinov2_reg_swiglu/24/mean",
  "bit_37",
  "wrn_10_2_13",
  "nf_resnet_37",
  "nfnet_37",
  "timm/clip_quickgelu/24/projection",
  "timm/dinov3/24/cls",
]
CONVNEXT = "timm/convnext/64/pooled"


def assert_same_arrays(got, want):
  assert got.keys() == want.keys()
  for name, array in want.items():
    np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("key", drawn.OUTPUTS)
def test_network_of_drawn_weights_gives_the_golden_embeddings(key):
  """timm's, and of a WRN those of jax_privacy's code, written in NumPy."""
  embeddings = drawn.embed(key)
  np.testing.assert_allclose(embeddings, drawn.OUTPUTS[key], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("key", [k for k in drawn.OUTPUTS if "siglip" in k])
def test_network_in_bfloat16_keeps_the_direction_of_embeddings(key):
  full = drawn.embed(key)
  half = drawn.embed(key, compute_dtype="bfloat16")
  norms = np.linalg.norm(full, axis=1) * np.linalg.norm(half, axis=1)
  cosines = (full * half).sum(axis=1) / norms
  assert 0.999 <= cosines.min() < 1


def jitted_on_images(key: str, **changes: Any) -> tuple[Any, np.ndarray]:
  """A jitted function of uint8 images alone, and five of these."""
  network, params, images = drawn.build(key, **changes)
  side = images.shape[1]
  apply = apply_function(network, Preprocessing(image_size=side))
  rng = np.random.default_rng(0)
  batch = rng.integers(0, 256, (5, side, side, 3), dtype=np.uint8)
  return jax.jit(functools.partial(apply, params)), batch


@pytest.mark.slow
@pytest.mark.parametrize(
  "key", ["timm/vit/24/cls", "timm/siglip/24/map", "bit_37", "nfnet_37"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_float32_are_never_rounded_to_fewer_bits(key, dtype):
  """TPUs and GPUs would do so unless the program asks for HIGHEST."""
  run, images = jitted_on_images(key, compute_dtype=dtype)
  text = run.lower(images).as_text()
  products = len(re.findall(r"stablehlo\.(?:dot_general|convolution)", text))
  assert products > 2
  operands_of_full_precision = 2 * products if dtype == "float32" else 0
  assert text.count("HIGHEST") == operands_of_full_precision


@pytest.mark.slow
@pytest.mark.parametrize("key", ["timm/siglip/24/map", "bit_37"])
def test_parameters_of_bfloat16_are_kernels_alone(key):
  _, params, _ = drawn.build(key, compute_dtype="bfloat16")
  for path, leaf in jax.tree.leaves_with_path(params):
    if path[-1].key == "kernel":
      assert leaf.dtype == jnp.bfloat16
    else:
      assert leaf.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize("key", ONE_OF_EACH_KIND)
def test_embedding_of_an_image_is_a_function_of_that_image_alone(key):
  """Whatever its slot and its neighbors: bit for bit, but for convolutions.

  On some processors XLA rounds a convolution differently in another slot, by
  about 1e-6. An extraction never changes an image's slot, and in its slot no
  neighbor changes a bit: see the next test.
  """
  run, batch = jitted_on_images(key)
  tolerance = 1e-5 if key.startswith(("bit", "wrn", "nf")) else 0.0
  embeddings = np.asarray(run(batch))
  assert np.isfinite(embeddings).all()
  assert len(np.unique(embeddings, axis=0)) == 5
  for slot in (1, 2, 3):
    rng = np.random.default_rng(slot)
    order = rng.permutation(5)
    np.testing.assert_allclose(
      run(batch[order]), embeddings[order], rtol=tolerance, atol=tolerance
    )
    noise = rng.integers(0, 256, batch.shape, dtype=np.uint8)
    # Black or white is what takes the place of a broken image.
    blank = np.full_like(batch, 255 * (slot % 2))
    for neighbors in (noise, blank):
      neighbors[slot] = batch[0]
      np.testing.assert_allclose(
        run(neighbors)[slot], embeddings[0], rtol=tolerance, atol=tolerance
      )


@pytest.mark.slow
@pytest.mark.parametrize("key", [*ONE_OF_EACH_KIND, CONVNEXT])
def test_embedding_of_an_image_changes_with_no_neighbor(key):
  """Bit for bit, in its slot, which an extraction never changes."""
  run, batch = jitted_on_images(key)
  embeddings = np.asarray(run(batch))
  assert len(np.unique(embeddings, axis=0)) == 5
  for slot in range(5):
    rng = np.random.default_rng(slot)
    noise = rng.integers(0, 256, batch.shape, dtype=np.uint8)
    blank = np.full_like(batch, 255 * (slot % 2))
    for neighbors in (noise, blank):
      neighbors[slot] = batch[slot]
      np.testing.assert_array_equal(run(neighbors)[slot], embeddings[slot])


HEADS_BY_SIZE = {"ti": 3, "s": 6, "b": 12, "l": 16, "h": 16, "so400m": 16}


@pytest.mark.long
def test_published_file_is_recognized_by_its_names_and_shapes():
  """Every file of timm's and Google's; of each kind one network is built,
  cut short."""
  built = set()
  for name, origin, shapes in drawn.published():
    arrays = {k: np.broadcast_to(np.float32(0), s) for k, s in shapes.items()}
    if origin == "npz":
      arrays = to_timm_names(arrays)
    spec = backbone_spec(name)
    family: Any = FAMILIES[spec.family]
    network = family.infer_network(arrays, None)
    inferred_name = family.inferred_name(network)
    prefix, _, size = name.rpartition("_")
    if spec.network_prefix is None:
      assert inferred_name == name
    else:
      assert inferred_name == f"{spec.network_prefix}{size}"
    kind = (prefix, origin, spec.family)
    if spec.family in ("vit", "clip"):
      kind = (*kind, network.mlp)
    if spec.family in ("vit", "clip", "rope_vit"):
      heads = spec.model_kwargs.get("heads", network.heads)
      assert heads == published_heads(name)
    if kind not in built:
      one_block = {}
      for key, array in arrays.items():
        is_kept = not key.startswith(family.CLASSIFIER_WEIGHTS)
        if is_kept and not re.match(drawn.REPEATED_BLOCKS, key):
          one_block[key] = array
      network = family.infer_network(one_block, None)
      adapted = family.adapt_weights(network, one_block, 64)
      check_arrays(network, adapted, 64)
      built.add(kind)
  assert len(built) >= 10


def published_heads(name: str) -> int:
  size = name.rpartition("_")[2].rstrip("0123456789")
  if size == "g":
    return 16 if name.startswith("siglip") else 24
  return HEADS_BY_SIZE[size]


@pytest.mark.parametrize(
  "layout",
  [
    drawn.GoogleViTLayout(1, 3, 2, "Transformer/posembed_input/pos_embedding"),
    drawn.GoogleViTLayout(0, 0, 1, "pos_embedding"),
  ],
  ids=["vision_transformer", "big_vision"],
)
def test_google_vit_renamed_equals_timm_arrays(layout):
  arrays = drawn.vit_weights("small/timm/vit")
  google = drawn.google_vit_arrays(arrays, layout)
  assert_same_arrays(to_timm_names(google), arrays)


def test_google_bit_renamed_equals_timm_arrays():
  google = drawn.conv_weights("bit", "npz")
  assert_same_arrays(to_timm_names(google), drawn.conv_weights("bit"))


@pytest.mark.slow
def test_vit_pixels_that_fill_no_patch_are_ignored():
  network, params, images = drawn.build("timm/vit/26/cls")
  run = jax.jit(network.apply)
  of_whole = run({"params": params}, images)
  of_patches = run({"params": params}, images[:, :24, :24])
  np.testing.assert_array_equal(of_whole, of_patches)


def bicubic_weights(old: int, new: int) -> np.ndarray:
  """[new, old], by equation 4 of Keys (1981), stretched where new < old."""
  place = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
  x = np.abs((np.arange(old) - place) / max(1.0, old / new))
  inner = 1.5 * x**3 - 2.5 * x**2 + 1
  outer = -0.5 * (x - 1) * (x - 2) ** 2
  weights = np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))
  return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.slow
@given(SIDES, SIDES)
def test_vit_positions_are_resized_by_the_bicubic_filter_of_torch(old, new):
  rng = np.random.default_rng(0)
  positions = rng.standard_normal((1, 1 + old**2, 2), "f4")
  grid = positions[0, 1:].reshape(old, old, 2)
  weights = bicubic_weights(old, new)
  want = np.einsum("ia,jb,abw->ijw", weights, weights, grid)
  network = vit.ViT(width=2, depth=1, hidden=1, patch=1, heads=1)

  adapted = vit.adapt_weights(network, {"pos_embed": positions}, new)

  resized = adapted["pos_embed"]
  np.testing.assert_array_equal(resized[:, :1], positions[:, :1])  # the token's
  np.testing.assert_allclose(
    resized[0, 1:].reshape(new, new, 2), want, atol=2e-5
  )


@pytest.mark.slow
def test_vit_last_block_computes_the_class_token_alone():
  """Less is compiled where nothing else is read."""
  flops = {}
  for embedding in ("cls", "mean"):
    network, params, images = drawn.build(f"timm/vit/24/{embedding}")
    lowered = jax.jit(network.apply).lower({"params": params}, images)
    flops[embedding] = (lowered.cost_analysis() or {})["flops"]
  assert flops["cls"] < 0.85 * flops["mean"]


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolution_in_groups_sees_its_group_alone(groups):
  """Against one of all channels whose kernel is zero between the groups."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 6, 5, 8)).astype(np.float32)
  kernel = rng.normal(size=(3, 3, 8 // groups, 8)).astype(np.float32)
  whole = np.zeros((3, 3, 8, 8), np.float32)
  width = 8 // groups
  for group in range(groups):
    channels = slice(group * width, (group + 1) * width)
    whole[:, :, channels, channels] = kernel[..., channels]

  got: Any = Convolution(8, 3, padding=1, groups=groups).apply(
    {"params": {"kernel": jnp.asarray(kernel)}}, jnp.asarray(x)
  )

  of_all = Convolution(8, 3, padding=1)
  want: Any = of_all.apply(
    {"params": {"kernel": jnp.asarray(whole)}}, jnp.asarray(x)
  )
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_convolution_of_each_channel_is_one_operation():
  """A depthwise convolution of hundreds of channels must not be taken apart."""
  module = Convolution(96, 3, padding=1, groups=96)
  x = np.zeros((1, 4, 4, 96), np.float32)
  params = {"params": {"kernel": np.zeros((3, 3, 1, 96), np.float32)}}
  text = jax.jit(module.apply).lower(params, x).as_text()
  assert text.count("stablehlo.convolution") <= 1


@pytest.fixture
def group_norm():
  """GroupNorm of 4 groups, with drawn parameters: (function, scale, bias)."""
  rng = np.random.default_rng(0)
  scale, bias = rng.uniform(0.5, 1.5, (2, 24)).astype(np.float32)
  apply = jax.jit(GroupNorm(4).apply)

  def run(x: np.ndarray) -> np.ndarray:
    return np.asarray(apply({"params": {"scale": scale, "bias": bias}}, x))

  return run, scale, bias


@pytest.fixture
def feature_maps():
  rng = np.random.default_rng(1)
  return rng.normal(size=(3, 7, 5, 24)).astype(np.float32)


@pytest.mark.parametrize(("offset", "tolerance"), [(0, 2e-6), (1000, 1e-3)])
def test_group_norm_has_the_digits_of_float64(
  group_norm, feature_maps, offset, tolerance
):
  run, scale, bias = group_norm
  wide = feature_maps.astype(np.float64).reshape(3, 35, 4, -1)
  centered = wide - wide.mean(axis=(1, 3), keepdims=True)
  var = np.square(centered).mean(axis=(1, 3), keepdims=True)
  want = (centered / np.sqrt(var + 1e-5)).reshape(feature_maps.shape)
  want = np.maximum(want * scale + bias, 0)
  got = run(feature_maps + offset)
  np.testing.assert_allclose(got, want, atol=tolerance)


def test_group_norm_of_bfloat16_has_statistics_of_float32(
  group_norm, feature_maps
):
  run, _, _ = group_norm
  narrow = feature_maps.astype(jnp.bfloat16)
  want = run(narrow.astype(np.float32)).astype(jnp.bfloat16)
  np.testing.assert_array_equal(run(narrow), want)


def test_standardize_divides_by_the_root_of_variance_plus_epsilon():
  kernel = np.array([[-0.5, 0.5], [-2.0, 2.0]], np.float32)
  want = kernel / np.sqrt([[0.25 + 0.75], [4 + 0.75]])
  np.testing.assert_allclose(standardize(kernel, 0.75), want, rtol=1e-6)


def test_standardize_of_a_constant_channel_is_zero():
  constant = np.full((2, 2, 3, 3), 0.1, np.float32)
  assert not standardize(constant, 1e-10).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_standardize_keeps_values_that_are_not_finite_to_be_refused(bad):
  kernel = np.random.default_rng(0).normal(size=(2, 2, 3, 3))
  kernel[1, 0, 0, 0] = bad
  standardized = standardize(kernel, 1e-10)
  assert np.isfinite(standardized[0]).all()
  assert np.isnan(standardized[1]).all()
