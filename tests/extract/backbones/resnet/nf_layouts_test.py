import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.resnet import nf_layouts
from oneshot_dp.extract.backbones.resnet.norm_free import NormFreeNet
from tests.extract.backbones import conv_cases
from tests.extract.backbones.conv_modules import (
  architecture,
  expected_shapes,
  shapes_of,
)

NAMES = sorted(nf_layouts.BLOCKS)


def hollow(name):
  """Arrays of a published file that take no memory."""
  shapes = conv_cases.layouts()["published"][name]["timm"]
  return {
    key: np.broadcast_to(np.float32(0.5), shape)
    for key, shape in shapes.items()
  }


def tiny():
  return NormFreeNet("nfnet", **conv_cases.NFNET_TINY)


def renamed(weights, shapes):
  blocks = conv_cases.NFNET_TINY["blocks"]
  return nf_layouts.rename(weights, shapes, "file", kind="nfnet", blocks=blocks)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_published_files_fit_exactly(name, monkeypatch):
  # What it computes is tested elsewhere; here it would fill 1 GB with it.
  monkeypatch.setattr(nf_layouts, "standardize", lambda kernel, *_: kernel)
  shapes = expected_shapes(name)
  got = architecture(name).rename(hollow(name), shapes, "file")
  assert {key: array.shape for key, array in got.items()} == shapes


@pytest.mark.parametrize(
  ("name", "other", "words"),
  [
    ("nfnet_f0", "nfnet_f1", "nfnet_f1"),
    ("nfnet_f3", "nfnet_f0", "nfnet_f0"),
    ("nfnet_f0", "nf_resnet50", "nf_resnet50"),
    ("nf_resnet50", "nf_resnet101", "nf_resnet101"),
    ("nf_resnet50", "nfnet_f2", "nfnet_f2"),
    ("nf_resnet50", "bit_r50x1", "a BiT"),
  ],
)
def test_another_depth_or_family_is_named(name, other, words):
  with pytest.raises(
    InputError,
    match=rf"^w\.safetensors: the weights look like {words}, not {name}: give"
    r" the weights or the backbone\.name of the other\.$",
  ):
    architecture(name).rename(hollow(other), {}, "w.safetensors")


def test_what_is_not_known_is_handed_on_to_be_named():
  weights = conv_cases.weights_in("nfnet")
  weights["stages.0.0.attn_last.conv.weight"] = np.ones((1, 1, 3))
  del weights["stem.conv2.gain"]
  weights["final_conv.weight"] = weights["final_conv.weight"].astype(np.int8)
  weights["stem.conv3.gain"] = np.ones(3, np.float32)
  shapes = shapes_of(tiny())
  got = renamed(weights, shapes)
  assert got.keys() - shapes.keys() == {
    "stem.conv3.weight",
    "stem.conv3.gain",
    "stem.conv3.bias",
    "stages.0.0.attn_last.conv.weight",
    "stem.conv2.weight",
    "stem.conv2.bias",
    "final_conv.weight",
    "final_conv.gain",
    "final_conv.bias",
  }
  assert shapes.keys() - got.keys() == {
    "stem2/kernel",
    "stem2/bias",
    "stem3/kernel",
    "stem3/bias",
    "final/kernel",
    "final/bias",
  }


def test_kernels_that_are_not_finite_stay_so_to_be_refused():
  weights = conv_cases.weights_in("nfnet")
  weights["stem.conv1.weight"][0, 0, 0, 0] = np.nan
  got = renamed(weights, shapes_of(tiny()))
  assert np.isnan(got["stem1/kernel"]).any()
