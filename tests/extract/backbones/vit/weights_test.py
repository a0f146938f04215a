"""Weights in the public layouts, against what the public libraries compute."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import flax.traverse_util
import hypothesis
import hypothesis.extra.numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import Architecture, Shape
from oneshot_dp.extract.backbones.registry import parameter_shapes
from oneshot_dp.extract.backbones.vit import families as vit
from oneshot_dp.extract.backbones.vit.network import VisionTransformer
from tests.extract.backbones import conv_cases, vit_golden
from tests.extract.refusals import refused

LAYOUTS = vit_golden.read_layouts()
with np.load(vit_golden.GOLDEN / "vit_outputs.npz") as golden_file:
  OUTPUTS = dict(golden_file)


def shapes_of(
  architecture: Architecture, embedding: str, side: int
) -> dict[str, Shape]:
  return parameter_shapes(architecture.build(embedding, "float32"), side)


def fits(arrays: dict, expected: dict[str, Shape]) -> bool:
  return {key: value.shape for key, value in arrays.items()} == expected


def embed(
  architecture: Architecture,
  embedding: str,
  arrays: dict,
  images: np.ndarray,
  compute_dtype: ComputeDtype = "float32",
) -> np.ndarray:
  expected = shapes_of(architecture, embedding, images.shape[1])
  renamed = architecture.rename(arrays, expected, "weights")
  assert fits(renamed, expected)
  params = flax.traverse_util.unflatten_dict(renamed, sep="/")
  module = architecture.build(embedding, compute_dtype)
  return run(module, params, images)


@functools.cache  # of the files of several libraries
def compiled(module: nn.Module) -> Callable[..., jax.Array]:
  return jax.jit(module.apply, compiler_options=conv_cases.SOON)


def run(module: nn.Module, params: dict, images: np.ndarray) -> np.ndarray:
  return np.asarray(compiled(module)({"params": params}, images))


def small(kind: str, name: str = "small") -> Architecture:
  """The architecture that the script's small model of that kind has."""
  key = kind.removesuffix("_swiglu")
  key = {"deit": "deit_distilled"}.get(key, key)
  sizes: dict[str, Any] = dict(vit_golden.SMALL)
  if kind.endswith("_swiglu"):
    sizes |= {"mlp_dim": vit_golden.SWIGLU_DIM, "mlp": "swiglu"}
  family = vit.FAMILIES[key]
  network = VisionTransformer(**family.parts, **sizes)
  return vit.architecture(name, family, network)


def drawn(key: str) -> dict[str, np.ndarray]:
  return {name: vit_golden.draw(name, s) for name, s in LAYOUTS[key].items()}


@pytest.mark.slow
@pytest.mark.parametrize("key", OUTPUTS)
def test_embeddings_are_those_of_the_public_libraries(key):
  library, kind, side, embedding = key.split("/")
  arrays = drawn(f"small/{library}/{kind}")
  images = vit_golden.images(int(side))
  got = embed(small(kind), embedding, arrays, images)
  expected = OUTPUTS[key]
  assert got.dtype == np.float32
  norms = np.linalg.norm(got, axis=-1) * np.linalg.norm(expected, axis=-1)
  assert ((got * expected).sum(axis=-1) / norms).min() >= 0.9999
  # Measured: 2e-6 for attention pooling, less than 1e-6 elsewhere.
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@functools.cache
def expected_of(name: str, embedding: str) -> dict[str, Shape]:
  architecture = vit.find(name)
  assert architecture is not None
  module: Any = architecture.build(embedding, "float32")
  # To trace dozens of blocks takes seconds, and all are as the second.
  two = module.clone(depth=2)
  shapes = parameter_shapes(two, architecture.reference.image_size)
  second = "encoderblock_1/"
  return shapes | {
    key.replace(second, f"encoderblock_{i}/"): shape
    for key, shape in shapes.items()
    for i in range(2, module.depth)
    if second in key
  }


def test_all_blocks_are_as_the_second():
  deit = vit.find("deit_ti16")
  assert deit is not None
  assert expected_of("deit_ti16", "cls") == shapes_of(deit, "cls", 224)


PUBLISHED = [key for key in LAYOUTS if key.startswith("published/")]


# By name, so that each network is traced once for all of its files.
@pytest.mark.slow
@pytest.mark.parametrize("name", vit.EXAMPLES)
def test_every_published_layout_is_read_in_full(name):
  architecture = vit.find(name)
  assert architecture is not None
  for key in PUBLISHED:
    _, library, of, kind = key.split("/")
    if of != name:
      continue
    # One number each, however large the model.
    arrays = {
      k: np.broadcast_to(np.float32(1), s) for k, s in LAYOUTS[key].items()
    }
    embeddings = {architecture.embeddings[0]}
    if library == "transformers" and kind.startswith("vit_2"):
      embeddings.add("pre_logits")
    if name == "siglip_b16":
      embeddings.add("mean")
    for embedding in embeddings:
      expected = expected_of(name, embedding)
      assert fits(architecture.rename(arrays, expected, "w"), expected), key


def test_every_name_has_a_published_layout_of_both_libraries():
  found = {tuple(key.split("/")[1:3]) for key in PUBLISHED}
  libraries = ("timm", "transformers")
  assert found == {(lib, name) for lib in libraries for name in vit.EXAMPLES}


class BigVisionMlp(nn.Module):
  tanh: bool

  @nn.compact
  def __call__(self, x):
    x = nn.gelu(nn.Dense(64)(x), approximate=self.tanh)
    return nn.Dense(32)(x)


class BigVisionBlock(nn.Module):
  tanh: bool

  @nn.compact
  def __call__(self, x, _):
    y = nn.LayerNorm()(x)
    x = x + nn.MultiHeadDotProductAttention(num_heads=4)(y, y)
    y = nn.LayerNorm()(x)
    return x + BigVisionMlp(self.tanh, name="MlpBlock_0")(y), None


class BigVisionEncoder(nn.Module):
  tanh: bool
  scan: bool

  @nn.compact
  def __call__(self, x):
    if self.scan:
      scanned = nn.scan(
        BigVisionBlock, {"params": 0}, split_rngs={"params": True}, length=2
      )
      x, _ = scanned(self.tanh, name="encoderblock")(x, None)
    else:
      for i in range(2):
        x, _ = BigVisionBlock(self.tanh, name=f"encoderblock_{i}")(x, None)
    return nn.LayerNorm(name="encoder_norm")(x)


class BigVisionPooling(nn.Module):
  tanh: bool

  @nn.compact
  def __call__(self, x):
    probe = self.param("probe", nn.initializers.normal(1), (1, 1, 32))
    probe = jnp.tile(probe, (len(x), 1, 1))
    x = nn.MultiHeadDotProductAttention(num_heads=4)(probe, x)
    mlp: Any = BigVisionMlp(self.tanh, name="MlpBlock_0")
    return (x + mlp(nn.LayerNorm()(x)))[:, 0]


class BigVision(nn.Module):
  """The network of big_vision's files, of linen's own modules."""

  pooling: str
  tanh: bool
  scan: bool

  @nn.compact
  def __call__(self, images):
    x = nn.Conv(32, (4, 4), strides=4, padding="VALID", name="embedding")(
      images
    )
    x = x.reshape(len(x), -1, 32)
    x = x + self.param("pos_embedding", nn.initializers.normal(1), (1, 36, 32))
    if self.pooling == "cls":
      cls = self.param("cls", nn.initializers.normal(1), (1, 1, 32))
      x = jnp.concatenate([jnp.tile(cls, (len(x), 1, 1)), x], axis=1)
    x = BigVisionEncoder(self.tanh, self.scan, name="Transformer")(x)
    if self.pooling == "map":
      return BigVisionPooling(self.tanh, name="MAPHead_0")(x)
    return x.mean(axis=1) if self.pooling == "gap" else x[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "pooling", "prefix", "scan"),
  [
    ("vit", "cls", "opt/target/", False),
    ("vit", "gap", "params/", False),
    ("vit", "map", "", True),
    ("siglip", "map", "params/img/", False),
    ("siglip", "map", "params/img/", True),
  ],
)
def test_big_vision_s_files(kind, pooling, prefix, scan):
  tanh = kind == "siglip"
  reference = BigVision(pooling=pooling, tanh=tanh, scan=scan)
  images = vit_golden.images(vit_golden.SIDE)
  tree = jax.eval_shape(reference.init, jax.random.key(0), images)["params"]
  leaves: dict[str, Any] = flax.traverse_util.flatten_dict(tree, sep="/")
  flat = {
    key: vit_golden.draw(key, value.shape) / (4 if value.ndim > 1 else 1)
    for key, value in leaves.items()
  }
  tree = flax.traverse_util.unflatten_dict(flat, sep="/")
  expected = run(reference, tree, images)
  arrays: dict[str, Any] = {
    f"{prefix}{key}": value for key, value in flat.items()
  }
  arrays[f"{prefix}head/kernel"] = np.ones((32, 5), np.float32)
  if "img" in prefix:
    arrays["params/txt/Embed_0/embedding"] = np.ones((3, 2), np.float32)
    arrays["params/t"] = np.ones(1, np.float32)
  got = embed(small(kind), pooling, arrays, images)
  np.testing.assert_allclose(got, expected, atol=1e-5)


VIT = "timm/vit_b16/vit_base_patch16_384"


def rename(name: str, embedding: str, arrays: dict) -> dict:
  architecture = vit.find(name)
  assert architecture is not None
  expected = expected_of(name, embedding)
  return architecture.rename(arrays, expected, "DIR/w")


def published(key: str) -> dict[str, np.ndarray]:
  shapes = LAYOUTS[f"published/{key}"]
  return {k: np.broadcast_to(np.float32(1), s) for k, s in shapes.items()}


@pytest.mark.parametrize(
  ("asked", "key", "message"),
  [
    (
      "vit_b16 cls",
      "timm/vit_ti16/vit_tiny_patch16_224",
      "look like width 192 depth 12 patch 16, MLP 768; vit_b16 expects width "
      "768 depth 12 patch 16, MLP 3072: give the weights or the name of",
    ),
    (
      "deit_b16 cls",
      "transformers/deit_distilled_b16/deit_labels_224",
      "a distillation token; deit_b16 expects .*, no distillation token:",
    ),
    (
      "dinov2_s14 cls",
      "timm/dinov2_reg_g14/vit_giant_patch14_reg4_dinov2",
      "4 register tokens; dinov2_s14 expects .*, no register tokens:",
    ),
    (
      "dinov2_s14 cls",
      "timm/vit_s16/vit_small_patch16_224",
      "patch 16, no LayerScale; dinov2_s14 expects .* patch 14, LayerScale:",
    ),
    ("vit_b16 gap", VIT, "a class token; .*, no class token: .*embedding"),
    ("vit_b16 pre_logits", VIT, "no pre_logits layer: set .*embedding=cls"),
    ("vit_b16 map", VIT, "no MAPHead_0 layer: set .*embedding=gap or mean"),
  ],
)
def test_other_networks_are_recognised(asked, key, message):
  name, embedding = asked.split()
  with refused(message) as caught:
    rename(name, embedding, published(key))
  assert str(caught.value).startswith("DIR/w")


def test_positions_of_no_square_grid_are_refused():
  arrays = published("timm/vit_s32/vit_small_patch32_224")
  arrays["pos_embed"] = np.ones((1, 52, 384), np.float32)
  with refused("for 52 tokens, which are not a square"):
    rename("vit_s32", "cls", arrays)


def test_unknown_arrays_keep_their_names():
  arrays = published("timm/vit_s32/vit_small_patch32_224")
  arrays["blocks.3.attn.q_norm.weight"] = arrays["fc_norm.bias"] = np.ones(3)
  got = rename("vit_s32", "cls", arrays)
  unknown = {"blocks.3.attn.q_norm.weight", "fc_norm.bias"}
  assert got.keys() - unknown == expected_of("vit_s32", "cls").keys()
  resnet = {"conv_root/kernel": np.ones(3, np.float32)}
  assert rename("vit_s32", "cls", resnet).keys() == resnet.keys()


def test_other_heads_are_not_forced_into_shape():
  ours = small("vit")
  expected = shapes_of(ours, "cls", vit_golden.SIDE)
  arrays = {k: np.ones(s, np.float32) for k, s in expected.items()}
  key = "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"
  arrays[key] = np.ones((32, 8, 4), np.float32)
  assert ours.rename(arrays, expected, "w")[key].shape == (32, 8, 4)


SMALL_KEYS = [key for key in LAYOUTS if key.startswith("small/")]


@pytest.mark.slow
@hypothesis.given(st.data(), st.sampled_from(SMALL_KEYS))
@hypothesis.settings(max_examples=200, deadline=None)
def test_damaged_shapes_raise_nothing_but_input_errors(data, key):
  kind = key.split("/")[-1]
  architecture, expected = damaged_case(kind)
  arrays = drawn(key)
  name = data.draw(st.sampled_from(sorted(arrays)))
  shape = data.draw(hypothesis.extra.numpy.array_shapes(min_dims=0, max_side=5))
  arrays[name] = np.ones(shape, np.float32)
  with contextlib.suppress(InputError):
    architecture.rename(arrays, expected, "w")


@functools.cache
def damaged_case(kind: str) -> tuple[Architecture, dict[str, Shape]]:
  architecture = small(kind)
  embedding = architecture.embeddings[0]
  return architecture, shapes_of(architecture, embedding, vit_golden.SIDE)
