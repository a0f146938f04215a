"""Vision Transformers against what timm made of them."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneshot_dp.extract.backbones import vit
from oneshot_dp.extract.backbones.google_names import in_timm_names
from oneshot_dp.extract.backbones.names import named
from oneshot_dp.extract.backbones.vit import _resize_grid
from oneshot_dp.extract.weights import check_arrays
from tests.extract.backbones import drawn

with np.load(drawn.GOLDEN / "vit_outputs.npz") as golden:
  OUTPUTS = dict(golden)
SIDE, HEADS = 24, 4
SIDES = st.integers(1, 40)


def embed(arrays, side, embedding, kind="", **changes: Any) -> np.ndarray:
  changes |= {"mlp": "gelu_tanh"} if kind == "siglip" else {}
  images = drawn.vit_images(side)
  return drawn.embed(vit, arrays, images, embedding, heads=HEADS, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("key", [k for k in OUTPUTS if "last" not in k])
def test_embeddings_are_timm_s(key):
  _, kind, side, embedding = key.split("/")
  got = embed(
    drawn.vit_weights(f"small/timm/{kind}"), int(side), embedding, kind
  )
  np.testing.assert_allclose(got, OUTPUTS[key], rtol=0, atol=1e-5)
  if kind == "siglip":  # In bfloat16 products alone are rounded.
    arrays, half = drawn.vit_weights(f"small/timm/{kind}"), "bfloat16"
    rounded = embed(arrays, SIDE, embedding, kind, compute_dtype=half)
    assert 0 < np.abs(rounded - got).max() < 0.1 * np.abs(got).max()


def test_what_fills_no_patch_is_left_out():
  arrays = drawn.vit_weights("small/timm/vit")
  images = drawn.vit_images(26)
  of_all, of_tiled = (
    drawn.embed(vit, arrays, x, "cls", heads=HEADS)
    for x in (images, images[:, :24, :24])
  )
  np.testing.assert_array_equal(of_all, of_tiled)


@pytest.mark.slow
def test_published_files_say_which_network_they_are():
  """Every name and shape of timm's; of each family one is built, cut short."""
  built = set()
  for key, layout in drawn.vit_layouts().items():
    place, name = key.split("/")[:3:2]
    if place != "published" or "/timm/" not in key:
      continue
    arrays = {k: np.broadcast_to(np.float32(0), s) for k, s in layout.items()}
    network = vit.network_of(arrays, None)
    looks = vit.name_of(network)
    assert name in (looks, looks.replace("vit_", "deit_"))
    heads = {**named(name).unsaid}.get("heads", network.heads)
    family, size = name.rstrip("0123456789").rsplit("_", 1)
    g = 16 if family == "siglip" else 24
    assert heads == {**PUBLISHED_HEADS, "g": g}[size]
    kept = {
      k: v
      for k, v in arrays.items()
      if not re.match(r"head|mask_token|blocks\.([2-9]|\d\d)\.", k)
    }
    few = vit.network_of(kept, None)
    if (kind := (family, few.mlp, *few.tokens)) not in built:
      side = few.patch * 16
      check_arrays(few, vit.folded(few, kept, side), side)
      built.add(kind)
    same = {k.replace("blocks.1.", "blocks.0.") for k in kept}
    assert same == {k for k in kept if "blocks.1." not in k}
  assert len(built) >= 7


PUBLISHED_HEADS = {"ti": 3, "s": 6, "b": 12, "l": 16, "h": 16, "so400m": 16}


def google_npz(arrays: dict, big_vision: bool) -> dict:
  """timm's arrays as Google's npz has them, written down from its code."""
  number, mlp, second = (
    (0, "MlpBlock_0", 1) if big_vision else (1, "MlpBlock_3", 2)
  )
  where = "" if big_vision else "Transformer/posembed_input/"
  kernel = arrays["patch_embed.proj.weight"].transpose(2, 3, 1, 0)
  found = {
    "cls": arrays["cls_token"],
    "embedding/kernel": kernel,
    "embedding/bias": arrays["patch_embed.proj.bias"],
    "head/kernel": np.zeros((32, 10), np.float32),
    "head/bias": np.zeros(10, np.float32),
    f"{where}pos_embedding": arrays["pos_embed"],
  }
  modules = {"norm": "Transformer/encoder_norm"}
  for i in range(2):
    ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
    modules |= {
      f"{ours}norm1": f"{theirs}LayerNorm_0",
      f"{ours}norm2": f"{theirs}LayerNorm_{second}",
      f"{ours}mlp.fc1": f"{theirs}{mlp}/Dense_0",
      f"{ours}mlp.fc2": f"{theirs}{mlp}/Dense_1",
    }
    heads = f"{theirs}MultiHeadDotProductAttention_{number}/"
    qkv = np.split(arrays[f"{ours}attn.qkv.weight"], 3)
    biases = np.split(arrays[f"{ours}attn.qkv.bias"], 3)
    for name, w, b in zip(("query", "key", "value"), qkv, biases, strict=True):
      found[f"{heads}{name}/kernel"] = w.T.reshape(32, HEADS, 8)
      found[f"{heads}{name}/bias"] = b.reshape(HEADS, 8)
    out = arrays[f"{ours}attn.proj.weight"].T.reshape(HEADS, 8, 32)
    found[f"{heads}out/kernel"] = out
    found[f"{heads}out/bias"] = arrays[f"{ours}attn.proj.bias"]
  for ours, theirs in modules.items():
    weight = arrays[f"{ours}.weight"].T
    found[f"{theirs}/{'kernel' if weight.ndim == 2 else 'scale'}"] = weight
    found[f"{theirs}/bias"] = arrays[f"{ours}.bias"]
  return found


@pytest.mark.parametrize("big_vision", [False, True])
def test_google_s_npz_holds_the_same_network(big_vision):
  arrays = drawn.vit_weights("small/timm/vit")
  got = in_timm_names(google_npz(arrays, big_vision))
  assert got.keys() == arrays.keys()
  for name in arrays.keys() - {"head.weight", "head.bias"}:
    np.testing.assert_array_equal(got[name], arrays[name], err_msg=name)


@given(SIDES, SIDES)
def test_positions_are_resized_as_torch_does(old, new):
  """By equation 4 of Keys (1981), stretched where there are fewer."""
  place = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
  x = np.abs((np.arange(old) - place) / max(1.0, old / new))
  inner, outer = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * (x - 1) * (x - 2) ** 2
  weights = np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))
  weights /= weights.sum(axis=1, keepdims=True)
  grid = np.random.default_rng(0).standard_normal((old**2, 2), np.float32)
  expected = np.einsum(
    "ia,jb,abw->ijw", weights, weights, grid.reshape(old, old, 2)
  )
  got = _resize_grid(grid, new).reshape(new, new, 2)
  np.testing.assert_allclose(got, expected, atol=2e-5)


def test_the_last_block_computes_the_class_token_alone():
  """Less is compiled where only that is read: the trick is in use."""
  arrays = drawn.vit_weights("small/timm/vit")
  flops = []
  for embedding in ("cls", "mean"):
    network = vit.network_of(arrays, embedding)
    network = network.clone(heads=HEADS)
    images = drawn.vit_images(SIDE)
    params = jax.eval_shape(network.init, jax.random.key(0), images)
    lowered = jax.jit(network.apply).lower(params, images)
    flops.append((lowered.cost_analysis() or {})["flops"])
  assert flops[0] < 0.85 * flops[1]
