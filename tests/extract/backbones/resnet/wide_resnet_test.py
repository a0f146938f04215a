"""WRNs against NumPy that says what jax_privacy's code does, name by name."""

import math

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Shape
from oneshot_dp.extract.backbones.checkpoint import to_params
from oneshot_dp.extract.backbones.registry import parameter_shapes
from oneshot_dp.extract.backbones.resnet import wide_resnet
from oneshot_dp.extract.backbones.resnet.wide_resnet import find
from tests.extract.backbones.conv_modules import embed


def published(depth: int, width: int) -> dict[str, Shape]:
  """Haiku's names and shapes, in the order in which its code asks for them."""
  shapes: dict[str, Shape] = {}

  def norm(name: str, channels: int) -> None:
    for leaf in ("scale", "offset"):
      shapes[f"wide_res_net/{name}/{leaf}"] = (channels,)

  def conv(name: str, size: int, channels: int, features: int) -> None:
    shapes[f"wide_res_net/{name}/w"] = (size, size, channels, features)
    for leaf in ("gain", "bias"):
      shapes[f"wide_res_net/{name}/{leaf}"] = (features,)

  conv("First_conv", 3, 3, 16)
  channels = 16
  for stage in (1, 2, 3):
    features = 16 * width * 2 ** (stage - 1)
    for block in range((depth - 4) // 6):
      if not block:
        norm(f"Block_{stage}_skip_norm", channels)
        conv(f"Block_{stage}_skip_conv", 1, channels, features)
      for place in (0, 1):
        norm(f"Block_{stage}_norm_{block}_{place}", channels)
        conv(f"Block_{stage}Conv_{block}_{place}", 3, channels, features)
        channels = features
  norm("Final_norm", channels)
  shapes["wide_res_net/Softmax/w"] = (channels, 1000)
  shapes["wide_res_net/Softmax/b"] = (1000,)
  return shapes


def drawn(depth: int, width: int) -> dict[str, np.ndarray]:
  """Kernels far from standardised, one of them so small that the floor acts."""
  rng = np.random.default_rng(depth)
  arrays = {}
  for name, shape in published(depth, width).items():
    scale, mean = 0.2, float(name.endswith(("/gain", "/scale")))
    if name.endswith("/w"):
      scale, mean = 0.3, 0.1
      if "Block_2_skip" in name:
        scale, mean = 1e-3, 0.0
    arrays[name] = rng.normal(mean, scale, shape).astype(np.float32)
  return arrays


class Oracle:
  """The forward pass in float64, in no more than NumPy."""

  def __init__(self, arrays: dict[str, np.ndarray]):
    self._arrays = arrays

  def _leaf(self, name: str) -> np.ndarray:
    return self._arrays[f"wide_res_net/{name}"].astype(np.float64)

  def _conv(self, name: str, x: np.ndarray, stride: int = 1) -> np.ndarray:
    w = self._leaf(f"{name}/w")
    fan_in = math.prod(w.shape[:3])
    spread = np.maximum(w.var(axis=(0, 1, 2)) * fan_in, 1e-4) ** 0.5
    w = (w - w.mean(axis=(0, 1, 2))) / spread * self._leaf(f"{name}/gain")
    size, side = len(w), x.shape[1]
    out = -(-side // stride)
    pad = max((out - 1) * stride + size - side, 0)  # "SAME": less in front
    sides = (pad // 2, pad - pad // 2)
    x = np.pad(x, ((0, 0), sides, sides, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(
      x, (size, size), axis=(1, 2)
    )[:, ::stride, ::stride]
    return np.einsum("byxiuv,uvio->byxo", windows, w) + self._leaf(
      f"{name}/bias"
    )

  def _norm(self, name: str, x: np.ndarray, groups: int = 16) -> np.ndarray:
    x = np.maximum(x, 0)  # before the norm
    grouped = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    mean = grouped.mean(axis=(1, 3), keepdims=True)
    var = grouped.var(axis=(1, 3), keepdims=True)
    x = ((grouped - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    return x * self._leaf(f"{name}/scale") + self._leaf(f"{name}/offset")

  def __call__(self, images: np.ndarray, depth: int) -> np.ndarray:
    x = self._conv("First_conv", images.astype(np.float64))
    for stage in (1, 2, 3):
      name = f"Block_{stage}"
      for block in range((depth - 4) // 6):
        skip, stride = x, 1 if stage == 1 or block else 2
        if not block:
          skip = self._norm(f"{name}_skip_norm", x)
          skip = self._conv(f"{name}_skip_conv", skip, stride)
        for place in (0, 1):
          x = self._norm(f"{name}_norm_{block}_{place}", x)
          x = self._conv(f"{name}Conv_{block}_{place}", x, stride)
          stride = 1
        x = x + skip
    return self._norm("Final_norm", x).mean(axis=(1, 2))


def found(name: str):
  architecture = find(name)
  assert architecture is not None
  return architecture


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("wrn_16_1", 12), ("wrn_10_2", 13)])
def test_embeddings_match(tmp_path, name, side):
  """Where "SAME" is not the same on both sides, and where it is."""
  depth, width = map(int, name.split("_")[1:])
  arrays = drawn(depth, width)
  module = found(name).build("pooled", "float32")
  shapes = parameter_shapes(module, side)
  renamed = found(name).rename(arrays, shapes, "w.npz")
  images = np.random.default_rng(1).normal(size=(3, side, side, 3))
  images = images.astype(np.float32)
  got = embed(module, renamed, images)
  assert got.shape == (3, 64 * width)
  want = Oracle(arrays)(images, depth)
  np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", wide_resnet.EXAMPLES)
def test_published_files_fit_exactly(name, monkeypatch):
  monkeypatch.setattr(
    wide_resnet, "standardize", lambda kernel, *_, **__: kernel
  )
  depth, width = map(int, name.split("_")[1:])
  arrays = {
    key: np.broadcast_to(np.float32(0.5), shape)
    for key, shape in published(depth, width).items()
  }
  shapes = parameter_shapes(found(name).build("pooled", "float32"), 32)
  got = found(name).rename(arrays, shapes, "w.npz")
  assert {key: array.shape for key, array in got.items()} == shapes


def test_another_file_is_refused_by_what_it_is(tmp_path):
  path, arrays = tmp_path / "w.npz", drawn(10, 1)
  module = found("wrn_10_1").build("pooled", "float32")
  shapes = parameter_shapes(module, 8)

  def refused(changed: dict[str, np.ndarray]) -> str:
    with pytest.raises(InputError) as error:
      to_params(found("wrn_10_1"), changed, shapes, path)
    return str(error.value)

  assert "look like wrn_16_2, not wrn_10_1" in refused(drawn(16, 2))
  gone = dict(arrays)
  del gone["wide_res_net/First_conv/gain"]
  said = refused(gone)
  assert "missing: stem/kernel" in said
  assert "unexpected: wide_res_net/First_conv/w" in said
  gain = {"wide_res_net/First_conv/gain": np.ones(3, np.float32)}
  assert "missing: stem/kernel" in refused(arrays | gain)
  scaled = arrays | {"wide_res_net/Block_1Scale_0_1": np.zeros(1, np.float32)}
  assert "unexpected: wide_res_net/Block_1Scale_0_1" in refused(scaled)
  broken = dict(arrays)
  broken["wide_res_net/Final_norm/scale"] = np.full(64, np.nan, np.float32)
  assert "norm/scale has values that are not finite" in refused(broken)


@pytest.mark.parametrize("name", ["wrn_28", "wrn_27_10", "wrn_4_1", "wrn_28_0"])
def test_other_names_mean_no_network(name):
  assert find(name) is None


def test_images_are_as_in_the_code_that_published_them():
  reference = found("wrn_28_10").reference
  assert (reference.image_size, reference.resize) == (32, "square")
  assert reference.mean == (0.49139968, 0.48215841, 0.44653091)
  assert reference.std == (0.24703223, 0.24348513, 0.26158784)
