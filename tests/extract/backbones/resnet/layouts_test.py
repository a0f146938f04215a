import tracemalloc

import numpy as np
import pytest

from oneshot_dp.extract.backbones.resnet import bit_layouts, nf_layouts
from oneshot_dp.extract.backbones.resnet.layouts import family
from tests.extract.backbones import conv_cases
from tests.extract.backbones.conv_modules import (
  TINY,
  architecture,
  expected_shapes,
  renamed,
  shapes_of,
)
from tests.extract.refusals import refused

PUBLISHED = conv_cases.layouts()["published"]


def hollow(name, layout="timm"):
  """Arrays of a published file that take no memory."""
  return {
    key: np.broadcast_to(np.float32(0.5), shape)
    for key, shape in PUBLISHED[name][layout].items()
  }


# By name, so that each network is traced once for all of its files.
@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_fit_exactly(name, monkeypatch):
  # What it computes is tested elsewhere; here it would fill 4 GB with it.
  for module in (bit_layouts, nf_layouts):
    monkeypatch.setattr(module, "standardize", lambda kernel, *_: kernel)
  shapes = expected_shapes(name)
  for layout in PUBLISHED[name]:
    got = architecture(name).rename(hollow(name, layout), shapes, "w.npz")
    assert {key: array.shape for key, array in got.items()} == shapes, layout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bit_r50x1", "nfnet_f0", "nf_resnet50"])
def test_all_blocks_are_as_the_second(name):
  module = architecture(name).build("pooled", "float32")
  assert expected_shapes(name) == shapes_of(module)


@pytest.mark.slow
def test_reading_needs_one_copy_of_the_weights():
  found = architecture("bit_r50x1")
  arrays = hollow("bit_r50x1")
  shapes = expected_shapes("bit_r50x1")
  tracemalloc.start()
  got = found.rename(arrays, shapes, "w.npz")
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  largest = max(array.size for array in got.values())
  total = sum(array.nbytes for array in got.values())
  # One kernel in float64 at a time (and once more while it is made).
  assert peak < total + 2 * 8 * largest + 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "other", "words"),
  [
    ("bit_r50x1", "bit_r50x3", "bit_r50x3"),
    ("bit_r50x1", "bit_r152x4", "bit_r152x4"),
    ("bit_r50x1", "nfnet_f0", "an NFNet"),
    ("nfnet_f0", "nfnet_f1", "nfnet_f1"),
    ("nfnet_f0", "nf_resnet50", "nf_resnet50"),
    ("nf_resnet50", "nf_resnet101", "nf_resnet101"),
    ("nf_resnet50", "bit_r50x1", "a BiT"),
  ],
)
def test_another_depth_width_or_family_is_named(name, other, words):
  shapes = expected_shapes(name)
  for layout in PUBLISHED[other].keys() & {"timm", "npz"}:
    arrays = hollow(other, layout)
    with refused(rf"^w\.npz: .* look like {words}, not {name}: give the wei"):
      architecture(name).rename(arrays, shapes, "w.npz")


@pytest.mark.parametrize(
  ("name", "what"),
  [
    ("resnet/block1/unit01/a/standardized_conv2d/kernel", "a BiT"),
    ("stages.0.blocks.0.norm3.weight", "a BiT"),
    ("bit.encoder.stages.0.layers.0.norm3.weight", "a BiT"),
    ("stages.0.0.skipinit_gain", "an NFNet"),
    ("stages.0.0.conv1.gain", "an NF-ResNet"),
    ("layer1.0.bn1.running_mean", "a network with batch normalisation"),
    ("blocks.0.attn.qkv.weight", "a transformer"),
    ("vit.encoder.layer.0.attention.output.dense.bias", "a transformer"),
    ("x/MultiHeadDotProductAttention_1/key/bias", "a transformer"),
    ("features.0.weight", None),
  ],
)
def test_one_name_tells_the_family(name, what):
  assert family(["head.bias", name]) == what
  # Squeezing does not make a transformer.
  squeezing = ["stages.0.0.attn_last.fc1.weight", "stages.0.0.skipinit_gain"]
  assert family(squeezing) == "an NFNet"


def test_what_bit_does_not_know_is_handed_on_to_be_named():
  unknown = {
    "stages.0.blocks.0.extra.weight": np.ones(3),
    "stages.0.blocks.0.conv4.weight": np.ones((1, 1, 1, 1)),
  }
  integers = {"stem.conv.weight": np.ones((8, 3, 7, 7), np.int8)}
  weights = conv_cases.weights_in("bit") | unknown | integers
  got = renamed("bit", weights)
  assert got.keys() - shapes_of(TINY["bit"]).keys() == unknown.keys()
  assert got["stem/kernel"].dtype == np.int8
  # Files of no known network, whole.
  arrays = {"features.0.weight": np.ones((2, 2), np.float32)}
  assert renamed("bit", arrays) == arrays


def test_what_nfnet_does_not_know_is_handed_on_to_be_named():
  weights = conv_cases.weights_in("nfnet")
  weights["stages.0.0.attn_last.conv.weight"] = np.ones((1, 1, 3))
  del weights["stem.conv2.gain"]
  weights["final_conv.weight"] = weights["final_conv.weight"].astype(np.int8)
  weights["stem.conv3.gain"] = np.ones(3, np.float32)
  weights["stem.conv1.weight"][0, 0, 0, 0] = np.nan
  shapes, got = shapes_of(TINY["nfnet"]), renamed("nfnet", weights)
  assert got.keys() - shapes.keys() == {
    *(f"stem.conv3.{leaf}" for leaf in ("weight", "gain", "bias")),
    *(f"final_conv.{leaf}" for leaf in ("weight", "gain", "bias")),
    *("stem.conv2.weight", "stem.conv2.bias"),
    "stages.0.0.attn_last.conv.weight",
  }
  assert shapes.keys() - got.keys() == {
    f"{name}/{leaf}"
    for name in ("stem2", "stem3", "final")
    for leaf in ("kernel", "bias")
  }
  # What is not finite stays so, to be refused.
  assert np.isnan(got["stem1/kernel"]).any()
