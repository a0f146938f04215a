"""BiT, WRN, NF-ResNet and NFNet against timm's outputs, and their parts."""

import re
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.extract.backbones import norm_free, resnet_v2
from oneshot_dp.extract.backbones.google_names import in_timm_names
from oneshot_dp.extract.backbones.resnet_v2 import GroupNorm, standardize
from oneshot_dp.extract.weights import check_arrays
from tests.extract.backbones import drawn

with np.load(drawn.GOLDEN / "conv_outputs.npz") as golden:
  OUTPUTS = dict(golden)
FAMILY = {"bit": resnet_v2, "nfnet": norm_free, "nf_resnet": norm_free}


def embed(case: str, arrays: dict, images: np.ndarray, **changes):
  changes |= {"groups": 4} if case == "bit" else {}  # of a tiny one
  return drawn.embed(FAMILY[case], arrays, images, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
  "key", ["bit_37", "bit_64", "nfnet_37", "nf_resnet_37"]
)
def test_embeddings_are_timm_s(key):
  case, side = key.rsplit("_", 1)
  images = drawn.conv_images(int(side))
  got = embed(case, drawn.conv_weights(case), images)
  np.testing.assert_allclose(got, OUTPUTS[key], rtol=0, atol=1e-5)
  if key == "bit_37":  # In bfloat16 it points the same way.
    arrays = drawn.conv_weights(case)
    half = embed(case, arrays, images, compute_dtype="bfloat16")
    norms = np.linalg.norm(got, axis=1) * np.linalg.norm(half, axis=1)
    assert ((got * half).sum(axis=1) / norms).min() >= 0.999


def test_google_s_npz_of_bit_holds_the_same_network():
  want = drawn.conv_weights("bit")
  got = in_timm_names(drawn.conv_weights("bit", "npz"))
  assert got.keys() == want.keys()
  for name, array in want.items():
    np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.slow
def test_published_files_say_which_network_they_are():
  """Every name and shape of timm's files and Google's; of each kind one is
  built, its stages cut short."""
  built = set()
  for name, files in sorted(drawn.conv_layouts()["published"].items()):
    family: Any = norm_free if name.startswith("nf") else resnet_v2
    for kind, shapes in files.items():
      arrays = {k: np.broadcast_to(np.float32(0), s) for k, s in shapes.items()}
      if kind != "timm":
        arrays = in_timm_names(arrays)
      assert family.name_of(family.network_of(arrays, None)) == name
      few = {
        k: v
        for k, v in arrays.items()
        if not re.match(r"head|stages\.\d\.(blocks\.)?([1-9]|\d\d)\.", k)
      }
      network = family.network_of(few, None)
      # Without the standardisation, which looks at every value.
      fitted = {
        k: v[:, :, 0, 0] if "attn_last" in k and v.ndim == 4 else v
        for k, v in few.items()
        if not k.endswith(".gain")
      }
      if (of := (name[:6], kind)) not in built:
        check_arrays(network, fitted, 32)
        built.add(of)


def wrn_shapes(depth: int, width: int) -> dict[str, tuple[int, ...]]:
  """Haiku's names and shapes, in the order in which its code asks for them."""
  shapes: dict[str, tuple[int, ...]] = {}

  def put(name: str, leaves: str, *shape: int) -> None:
    shapes.update({f"wide_res_net/{name}/{k}": shape for k in leaves.split()})

  def conv(name: str, *shape: int) -> None:
    put(name, "w", *shape)
    put(name, "gain bias", shape[-1])

  conv("First_conv", 3, 3, 3, 16)
  channels = 16
  for stage in (1, 2, 3):
    features = 16 * width * 2 ** (stage - 1)
    put(f"Block_{stage}_skip_norm", "scale offset", channels)
    conv(f"Block_{stage}_skip_conv", 1, 1, channels, features)
    for block in range((depth - 4) // 6):
      for place in (0, 1):
        put(f"Block_{stage}_norm_{block}_{place}", "scale offset", channels)
        conv(f"Block_{stage}Conv_{block}_{place}", 3, 3, channels, features)
        channels = features
  put("Final_norm", "scale offset", channels)
  put("Softmax", "w", channels, 1000)
  put("Softmax", "b", 1000)
  return shapes


def wrn_weights(depth: int, width: int) -> dict[str, np.ndarray]:
  """Kernels far from standardised, one of them so small that the floor acts."""
  rng, arrays = np.random.default_rng(depth), {}
  for name, shape in wrn_shapes(depth, width).items():
    scale, mean = 0.2, float(name.endswith(("/gain", "/scale")))
    if name.endswith("/w"):
      scale, mean = (1e-3, 0.0) if "Block_2_skip" in name else (0.3, 0.1)
    arrays[name] = rng.normal(mean, scale, shape).astype(np.float32)
  return arrays


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "width", "side"), [(16, 1, 12), (10, 2, 13)])
def test_wrn_is_what_jax_privacy_s_code_says(depth, width, side):
  """In float64, written down in NumPy: WrnOracle of this file at 0aacbfa."""
  arrays = in_timm_names(wrn_weights(depth, width))
  name = resnet_v2.name_of(resnet_v2.network_of(arrays, None))
  assert name == f"wrn_{depth}_{width}"
  images = np.random.default_rng(1).normal(size=(2, side, side, 3))
  got = drawn.embed(resnet_v2, arrays, images.astype(np.float32))
  np.testing.assert_allclose(got, OUTPUTS[f"{name}_{side}"], rtol=0, atol=1e-5)


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
  narrow = images.astype(ml_dtypes.bfloat16)
  want = run(narrow.astype(np.float32)).astype(ml_dtypes.bfloat16)
  np.testing.assert_array_equal(run(narrow), want)


def test_standardisation_at_its_edges():
  kernel = np.array([[-0.5, 0.5], [-2.0, 2.0]], np.float32)
  got = standardize(kernel, 0.75)
  want = kernel / np.sqrt([[0.25 + 0.75], [4 + 0.75]])
  np.testing.assert_allclose(got, want, rtol=1e-6)
  assert not standardize(np.full((2, 2, 3, 3), 0.1, np.float32), 1e-10).any()
  for bad in (np.nan, np.inf):  # stays, to be refused
    kernel = np.random.default_rng(0).normal(size=(2, 2, 3, 3))
    kernel[1, 0, 0, 0] = bad
    got = standardize(kernel, 1e-10)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()
