"""Vision Transformers against what timm and transformers made of them."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oneshot_dp.extract.backbones import vit_file
from oneshot_dp.extract.backbones.backbone import check_arrays
from oneshot_dp.extract.backbones.names import named
from oneshot_dp.extract.backbones.vit_file import resize_grid
from oneshot_dp.extract.weights import in_timm_names
from tests.extract.backbones import drawn

with np.load(drawn.GOLDEN / "vit_outputs.npz") as golden:
  OUTPUTS = dict(golden)
SIDE, HEADS = 24, 4
# transformers' names of DINOv2 to timm's, where they differ.
_DINOV2 = {
  "embeddings.cls_token": "cls_token",
  "embeddings.register_tokens": "reg_token",
  "embeddings.patch_embeddings.projection": "patch_embed.proj",
  r"encoder\.layer\.(\d+)\.": r"blocks.\1.",
  r"attention\.output\.dense": "attn.proj",
  r"layer_scale(\d)\.lambda1": r"ls\1.gamma",
  r"mlp\.weights_in": "mlp.fc1",
  r"mlp\.weights_out": "mlp.fc2",
  "^layernorm": "norm",
}


def embed(arrays, side, embedding, kind="", **changes: Any) -> np.ndarray:
  changes |= {"mlp": "gelu_tanh"} if kind == "siglip" else {}
  images = drawn.vit_images(side)
  return drawn.embed(
    vit_file, arrays, images, embedding, heads=HEADS, **changes
  )


def from_transformers(arrays: dict) -> dict:
  """Their DINOv2 as timm converts it: with registers only patches have
  positions, and the class token has its own added."""
  found = {}
  for name, array in arrays.items():
    for theirs, ours in _DINOV2.items():
      name = re.sub(theirs, ours, name)
    found[name] = array
  positions = found.pop("embeddings.position_embeddings")
  found.pop("embeddings.mask_token")
  for block in {n.split(".")[1] for n in found if n.startswith("blocks.")}:
    for leaf in ("weight", "bias"):
      at = f"blocks.{block}.attention.attention"
      parts = [found.pop(f"{at}.{p}.{leaf}") for p in ("query", "key", "value")]
      found[f"blocks.{block}.attn.qkv.{leaf}"] = np.concatenate(parts)
  if "reg_token" in found:
    found["cls_token"] = found["cls_token"] + positions[:, :1]
    positions = positions[:, 1:]
  return {**found, "pos_embed": positions}


def golden_keys():
  """All of timm's; of transformers' those that resize positions as timm."""
  for key in OUTPUTS:
    library, kind, side, _ = key.split("/")
    resized_alike = int(side) == SIDE or kind == "dinov2_reg"
    if library == "timm" or (kind.startswith("dinov2") and resized_alike):
      yield key


@pytest.mark.slow
@pytest.mark.parametrize("key", list(golden_keys()))
def test_embeddings_are_those_of_the_public_libraries(key):
  library, kind, side, embedding = key.split("/")
  arrays = drawn.vit_weights(f"small/{library}/{kind}")
  if library == "transformers":
    arrays = from_transformers(arrays)
  got = embed(arrays, int(side), embedding, kind)
  np.testing.assert_allclose(got, OUTPUTS[key], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_cls_and_mean_are_cut_from_the_same_tokens():
  arrays = drawn.vit_weights("small/timm/vit")
  got = embed(arrays, SIDE, "cls_mean")
  last, mean = (OUTPUTS[f"timm/vit/24/{e}"] for e in ("last2_cls", "mean"))
  want = np.concatenate([last[:, 32:], mean], axis=-1)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_rounds_products_only():
  arrays = drawn.vit_weights("small/timm/siglip")
  exact = OUTPUTS["timm/siglip/24/map"]
  rounded = embed(arrays, SIDE, None, "siglip", compute_dtype="bfloat16")
  assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()


def test_what_fills_no_patch_is_left_out():
  arrays = drawn.vit_weights("small/timm/vit")
  images = drawn.vit_images(26)
  of_all, of_tiled = (
    drawn.embed(vit_file, arrays, x, "cls", heads=HEADS)
    for x in (images, images[:, :24, :24])
  )
  np.testing.assert_array_equal(of_all, of_tiled)


def published():
  for key in drawn.vit_layouts():
    if key.startswith("published/timm/"):
      yield key.split("/")[2], key


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key"), list(published()))
def test_published_files_say_which_network_they_are(name, key):
  """Every name and shape of the file, as timm has it; two blocks are built."""
  layout = drawn.vit_layouts()[key]
  arrays = {k: np.broadcast_to(np.float32(0), s) for k, s in layout.items()}
  network = vit_file.network_of(arrays, None)
  looks = vit_file.name_of(network)
  assert name in (looks, looks.replace("vit_", "deit_"))
  heads = {**named(name).unsaid}.get("heads", network.heads)
  assert heads == PUBLISHED_HEADS[name.rstrip("0123456789")]
  kept = {
    k: v
    for k, v in arrays.items()
    if not re.match(r"head|mask_token|blocks\.([2-9]|\d\d)\.", k)
  }
  few = vit_file.network_of(kept, None)
  side = few.patch * 16
  fitted = vit_file.folded(few, kept, side)
  check_arrays(few, fitted, side)


PUBLISHED_HEADS = {
  f"{family}_{size}": heads
  for family in ("vit", "deit", "deit_distilled", "dinov2", "dinov2_reg")
  for size, heads in {
    "ti": 3,
    "s": 6,
    "b": 12,
    "l": 16,
    "h": 16,
    "g": 24,
  }.items()
} | {"siglip_b": 12, "siglip_l": 16, "siglip_so400m": 16, "siglip_g": 16}


def google_npz(arrays: dict, big_vision: bool) -> dict:
  """timm's arrays as Google's npz has them, written down from its code."""
  layer = (
    "MultiHeadDotProductAttention_0"
    if big_vision
    else "MultiHeadDotProductAttention_1"
  )
  mlp, second = ("MlpBlock_0", 1) if big_vision else ("MlpBlock_3", 2)
  found = {
    "cls": arrays["cls_token"],
    "embedding/kernel": arrays["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
    "embedding/bias": arrays["patch_embed.proj.bias"],
    "Transformer/encoder_norm/scale": arrays["norm.weight"],
    "Transformer/encoder_norm/bias": arrays["norm.bias"],
    "head/kernel": np.zeros((32, 10), np.float32),
    "head/bias": np.zeros(10, np.float32),
  }
  where = "" if big_vision else "Transformer/posembed_input/"
  found[f"{where}pos_embedding"] = arrays["pos_embed"]
  for i in range(2):
    ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
    for norm, number in (("norm1", 0), ("norm2", second)):
      for leaf, name in (("weight", "scale"), ("bias", "bias")):
        found[f"{theirs}LayerNorm_{number}/{name}"] = arrays[
          f"{ours}{norm}.{leaf}"
        ]
    qkv = np.split(arrays[f"{ours}attn.qkv.weight"], 3)
    biases = np.split(arrays[f"{ours}attn.qkv.bias"], 3)
    for name, w, b in zip(("query", "key", "value"), qkv, biases, strict=True):
      found[f"{theirs}{layer}/{name}/kernel"] = w.T.reshape(32, HEADS, 8)
      found[f"{theirs}{layer}/{name}/bias"] = b.reshape(HEADS, 8)
    out = arrays[f"{ours}attn.proj.weight"].T.reshape(HEADS, 8, 32)
    found[f"{theirs}{layer}/out/kernel"] = out
    found[f"{theirs}{layer}/out/bias"] = arrays[f"{ours}attn.proj.bias"]
    for j in range(2):
      dense = f"{theirs}{mlp}/Dense_{j}"
      found[f"{dense}/kernel"] = arrays[f"{ours}mlp.fc{j + 1}.weight"].T
      found[f"{dense}/bias"] = arrays[f"{ours}mlp.fc{j + 1}.bias"]
  return found


@pytest.mark.parametrize("big_vision", [False, True])
def test_google_s_npz_holds_the_same_network(big_vision):
  arrays = drawn.vit_weights("small/timm/vit")
  got = in_timm_names(google_npz(arrays, big_vision))
  assert got.keys() == arrays.keys()
  for name in arrays.keys() - {"head.weight", "head.bias"}:
    np.testing.assert_array_equal(got[name], arrays[name], err_msg=name)


SIDES = st.integers(1, 40)


@given(SIDES, SIDES)
def test_positions_are_resized_by_pillow_s_bicubic(old, new):
  grid = np.random.default_rng(0).standard_normal((old, old), np.float32)
  bicubic = Image.Resampling.BICUBIC
  expected = np.asarray(Image.fromarray(grid).resize((new, new), bicubic))
  got = resize_grid(grid.reshape(-1, 1), new)
  np.testing.assert_allclose(got.reshape(new, new), expected, atol=2e-5)


@pytest.mark.parametrize(
  ("drop", "embedding", "said"),
  [
    ("patch_embed", None, "patch_embed.proj.weight"),
    ("", "map", "none of cls, cls_mean, last1_cls … last2_cls, mean"),
    ("", "last3_cls", "none of"),
    ("cls_token", "cls", "none of mean"),
  ],
)
def test_what_is_no_such_network_is_refused(drop, embedding, said):
  arrays = drawn.vit_weights("small/timm/vit")
  if drop == "cls_token":
    arrays["pos_embed"] = arrays["pos_embed"][:, 1:]
  kept = {k: v for k, v in arrays.items() if not (drop and k.startswith(drop))}
  with pytest.raises((KeyError, ValueError), match=re.escape(said)):
    vit_file.network_of(kept, embedding)


def test_positions_of_no_square_are_refused():
  arrays = drawn.vit_weights("small/timm/vit")
  arrays["pos_embed"] = arrays["pos_embed"][:, :-3]
  with pytest.raises(ValueError, match="no square"):
    vit_file.network_of(arrays, None)


def test_the_last_block_computes_the_class_token_alone():
  """Less is compiled where only that is read: the trick is in use."""
  arrays = drawn.vit_weights("small/timm/vit")
  flops = []
  for embedding in ("cls", "cls_mean"):
    network = vit_file.network_of(arrays, embedding)
    network = network.clone(heads=HEADS)
    images = drawn.vit_images(SIDE)
    lowered = jax.jit(network.init_with_output).lower(jax.random.key(0), images)
    flops.append((lowered.cost_analysis() or {})["flops"])
  assert flops[0] < 0.85 * flops[1]
