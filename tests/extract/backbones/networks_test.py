"""The networks against what timm and others made of them, and their parts."""

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
from oneshot_dp.extract.backbones.backbone import FAMILIES, apply_function
from oneshot_dp.extract.backbones.google_names import in_timm_names
from oneshot_dp.extract.backbones.names import named
from oneshot_dp.extract.backbones.resnet_v2 import GroupNorm, standardize
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.weights import check_arrays
from tests.extract.backbones import drawn

HEADS, LEAVES = 4, ("weight", "bias")
SIDES = st.integers(1, 40)


def same(got, want):
  assert got.keys() == want.keys()
  for name, array in want.items():
    np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("key", drawn.OUTPUTS)
def test_embeddings_are_those_of_other_programs(key):
  """timm's, and of a WRN those of jax_privacy's code, written in NumPy."""
  got = drawn.embedded(key)
  np.testing.assert_allclose(got, drawn.OUTPUTS[key], rtol=0, atol=1e-5)
  if re.search("siglip|bit", key):  # In bfloat16 products alone are rounded.
    half = drawn.embedded(key, compute_dtype="bfloat16")
    norms = np.linalg.norm(got, axis=1) * np.linalg.norm(half, axis=1)
    assert 0.999 <= ((got * half).sum(axis=1) / norms).min() < 1


CASES = [
  *("timm/vit/24/cls", "timm/siglip/24/map", "timm/dinov2_reg_swiglu/24/mean"),
  *("bit_37", "wrn_10_2_13", "nf_resnet_37", "nfnet_37"),
]


def applied(key: str, **changes: Any) -> tuple[Any, np.ndarray]:
  """A jitted function of uint8 images alone, and five of these."""
  network, params, images = drawn.built(key, **changes)
  side = images.shape[1]
  apply = apply_function(network, Preprocessing(image_size=side))
  rng = np.random.default_rng(0)
  shown = rng.integers(0, 256, (5, side, side, 3), dtype=np.uint8)
  return jax.jit(functools.partial(apply, params)), shown


@pytest.mark.parametrize("key", [*CASES[:2], CASES[3], CASES[6]])
def test_products_of_float32_are_not_rounded(key):
  """Where a device would take fewer bits, as TPUs and GPUs do."""
  for dtype, kernel in ("float32", np.float32), ("bfloat16", jnp.bfloat16):
    run, images = applied(key, compute_dtype=dtype)
    text = run.lower(images).as_text()
    number = len(re.findall(r"stablehlo\.(?:dot_general|convolution)", text))
    assert number > 2
    assert text.count("HIGHEST") == (2 * number if dtype == "float32" else 0)
    (params,) = run.__wrapped__.args
    for path, leaf in jax.tree.leaves_with_path(params):
      is_kernel = path[-1].key == "kernel"
      assert leaf.dtype == (kernel if is_kernel else np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("key", CASES)
def test_an_image_s_embedding_depends_on_no_other(key):
  """Bit for bit, whatever its slot and its neighbours."""
  run, batch = applied(key)
  alone = np.asarray(run(batch))
  assert np.isfinite(alone).all()
  assert len(np.unique(alone, axis=0)) == 5
  for seed in range(3):
    rng = np.random.default_rng(seed + 1)
    order = rng.permutation(5)
    np.testing.assert_array_equal(run(batch[order]), alone[order])
    # Black, white, in place of broken ones.
    for others in (
      rng.integers(0, 256, batch.shape, dtype=np.uint8),
      np.full_like(batch, 255 * (seed % 2)),
    ):
      others[seed + 1] = batch[0]
      np.testing.assert_array_equal(run(others)[seed + 1], alone[0])


@pytest.mark.slow
def test_published_files_say_which_network_they_are():
  """Every name and shape of timm's files and Google's; of each kind one is
  built, cut short."""
  built = set()
  for name, kind, shapes in drawn.published():
    arrays = {k: np.broadcast_to(np.float32(0), s) for k, s in shapes.items()}
    if kind == "npz":
      arrays = in_timm_names(arrays)
    row = named(name)
    family: Any = FAMILIES[row.family]
    network = family.network_of(arrays, None)
    looks = family.name_of(network)
    assert name in (looks, looks.replace("vit_", "deit_"))
    few = {k: v for k, v in arrays.items() if not re.match(drawn.BESIDES, k)}
    of = [name.rpartition("_")[0], kind, row.family]
    if family is vit:
      g = 16 if name.startswith("siglip") else 24
      size = name.rpartition("_")[2].rstrip("0123456789")
      heads = {**row.unsaid}.get("heads", network.heads)
      assert heads == {**PUBLISHED_HEADS, "g": g}[size]
      of.append(network.mlp)
    if (*of,) not in built:
      network = family.network_of(few, None)
      check_arrays(network, family.fitted(network, few, 64), 64)
      built.add((*of,))
  assert len(built) >= 10


PUBLISHED_HEADS = {"ti": 3, "s": 6, "b": 12, "l": 16, "h": 16, "so400m": 16}


def google_npz(arrays: dict, attn: int, mlp: int, norm: int, where: str):
  """timm's arrays as vision_transformer's or big_vision's code saves them."""
  found = {f"{where}pos_embedding": arrays["pos_embed"]}
  found["cls"] = arrays["cls_token"]
  modules = {"patch_embed.proj": "embedding", "head": "head"}
  modules["norm"] = "Transformer/encoder_norm"
  for i in range(2):
    ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
    heads = f"{theirs}MultiHeadDotProductAttention_{attn}/"
    modules |= {
      f"{ours}norm1": f"{theirs}LayerNorm_0",
      f"{ours}norm2": f"{theirs}LayerNorm_{norm}",
      f"{ours}mlp.fc1": f"{theirs}MlpBlock_{mlp}/Dense_0",
      f"{ours}mlp.fc2": f"{theirs}MlpBlock_{mlp}/Dense_1",
      f"{ours}attn.proj": f"{heads}out",
    }
    qkv = (np.split(arrays[f"{ours}attn.qkv.{n}"], 3) for n in LEAVES)
    for name, w, b in zip(("query", "key", "value"), *qkv, strict=True):
      found[f"{heads}{name}/kernel"] = w.T.reshape(32, HEADS, 8)
      found[f"{heads}{name}/bias"] = b.reshape(HEADS, 8)
  for ours, theirs in modules.items():
    weight, bias = (arrays[f"{ours}.{leaf}"] for leaf in LEAVES)
    kernel = weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight.T
    kernel = kernel.reshape(HEADS, 8, 32) if "/out" in theirs else kernel
    found[f"{theirs}/{'scale' if weight.ndim == 1 else 'kernel'}"] = kernel
    found[f"{theirs}/bias"] = bias
  return found


def test_google_s_npz_holds_the_same_network():
  arrays = drawn.vit_weights("small/timm/vit")
  for numbers in ((1, 3, 2, "Transformer/posembed_input/"), (0, 0, 1, "")):
    same(in_timm_names(google_npz(arrays, *numbers)), arrays)
  of_bit = drawn.conv_weights("bit", "npz")
  same(in_timm_names(of_bit), drawn.conv_weights("bit"))


def test_what_fills_no_patch_is_left_out():
  network, params, images = drawn.built("timm/vit/26/cls")
  of_all, of_tiled = (
    jax.jit(network.apply)({"params": params}, x)
    for x in (images, images[:, :24, :24])
  )
  np.testing.assert_array_equal(of_all, of_tiled)


@given(SIDES, SIDES)
def test_positions_are_resized_as_torch_does(old, new):
  """By equation 4 of Keys (1981), stretched where there are fewer."""
  place = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
  x = np.abs((np.arange(old) - place) / max(1.0, old / new))
  inner, outer = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * (x - 1) * (x - 2) ** 2
  weights = np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))
  weights /= weights.sum(axis=1, keepdims=True)
  grid = np.random.default_rng(0).standard_normal((1, 1 + old**2, 2), "f4")
  expected = np.einsum(
    "ia,jb,abw->ijw", weights, weights, grid[0, 1:].reshape(old, old, 2)
  )
  network = vit.ViT(width=2, depth=1, hidden=1, patch=1, heads=1)
  got = vit.fitted(network, {"pos_embed": grid}, new)["pos_embed"]
  np.testing.assert_array_equal(got[:, :1], grid[:, :1])  # the token's
  np.testing.assert_allclose(
    got[0, 1:].reshape(new, new, 2), expected, atol=2e-5
  )


def test_the_last_block_computes_the_class_token_alone():
  """Less is compiled where only that is read: the trick is in use."""
  flops = []
  for embedding in ("cls", "mean"):
    network, params, images = drawn.built(f"timm/vit/24/{embedding}")
    lowered = jax.jit(network.apply).lower({"params": params}, images)
    flops.append((lowered.cost_analysis() or {})["flops"])
  assert flops[0] < 0.85 * flops[1]


def test_group_norm_keeps_its_digits():
  """Of float64, with a large mean; in bfloat16 its statistics are float32."""
  rng = np.random.default_rng(0)
  images = rng.normal(size=(3, 7, 5, 24)).astype(np.float32)
  scale, bias = rng.uniform(0.5, 1.5, (2, 24)).astype(np.float32)
  apply = jax.jit(GroupNorm(4).apply)

  def run(x: np.ndarray) -> np.ndarray:
    return np.asarray(apply({"params": {"scale": scale, "bias": bias}}, x))

  wide = images.astype(np.float64).reshape(3, 35, 4, -1)
  centred = wide - wide.mean(axis=(1, 3), keepdims=True)
  var = np.square(centred).mean(axis=(1, 3), keepdims=True)
  want = (centred / np.sqrt(var + 1e-5)).reshape(images.shape)
  want = np.maximum(want * scale + bias, 0)
  np.testing.assert_allclose(run(images), want, atol=2e-6)
  np.testing.assert_allclose(run(images + 1000), want, atol=1e-3)
  narrow = images.astype(jnp.bfloat16)
  want = run(narrow.astype(np.float32)).astype(jnp.bfloat16)
  np.testing.assert_array_equal(run(narrow), want)


def test_standardisation_at_its_edges():
  kernel = np.array([[-0.5, 0.5], [-2.0, 2.0]], np.float32)
  want = kernel / np.sqrt([[0.25 + 0.75], [4 + 0.75]])
  np.testing.assert_allclose(standardize(kernel, 0.75), want, rtol=1e-6)
  assert not standardize(np.full((2, 2, 3, 3), 0.1, np.float32), 1e-10).any()
  for bad in (np.nan, np.inf):  # stays, to be refused
    kernel = np.random.default_rng(0).normal(size=(2, 2, 3, 3))
    kernel[1, 0, 0, 0] = bad
    got = standardize(kernel, 1e-10)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()
