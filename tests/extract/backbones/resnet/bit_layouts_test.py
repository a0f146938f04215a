import tracemalloc

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.resnet import bit_layouts, bit_resnet
from tests.extract.backbones import conv_cases
from tests.extract.backbones.conv_modules import (
  architecture,
  expected_shapes,
  shapes_of,
)

PUBLISHED = {
  name: list(layouts)
  for name, layouts in conv_cases.layouts()["published"].items()
  if name.startswith("bit")
}


def hollow(name, layout):
  """Arrays of a published file that take no memory."""
  shapes = conv_cases.layouts()["published"][name][layout]
  return {
    key: np.broadcast_to(np.float32(0.5), shape)
    for key, shape in shapes.items()
  }


def rename_into(name, arrays):
  shapes = expected_shapes(name)
  return architecture(name).rename(arrays, shapes, "w.npz"), shapes


# By name, so that each network is traced once for all of its files.
@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_fit_exactly(name, monkeypatch):
  # What it computes is tested elsewhere; here it would fill 4 GB with it.
  monkeypatch.setattr(bit_layouts, "standardize", lambda kernel, _: kernel)
  for layout in PUBLISHED[name]:
    got, shapes = rename_into(name, hollow(name, layout))
    assert {key: array.shape for key, array in got.items()} == shapes, layout


def test_reading_needs_one_copy_of_the_weights():
  found = architecture("bit_r50x1")
  arrays = hollow("bit_r50x1", "timm")
  shapes = expected_shapes("bit_r50x1")
  tracemalloc.start()
  got = found.rename(arrays, shapes, "w.npz")
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  largest = max(array.size for array in got.values())
  total = sum(array.nbytes for array in got.values())
  # One kernel in float64 at a time (and once more while it is made).
  assert peak < total + 2 * 8 * largest + 2**20


@pytest.mark.parametrize("layout", ["timm", "npz"])
@pytest.mark.parametrize("other", ["bit_r50x3", "bit_r101x1", "bit_r152x4"])
def test_another_depth_or_width_is_named(other, layout):
  with pytest.raises(
    InputError,
    match=rf"^w\.npz: the weights look like {other}, not bit_r50x1: give the"
    r" weights or the backbone\.name of the other\.$",
  ):
    rename_into("bit_r50x1", hollow(other, layout))


@pytest.mark.parametrize(
  ("other", "words"),
  [("nfnet_f0", "an NFNet"), ("nf_resnet50", "an NF-ResNet")],
)
def test_another_family_is_named(other, words):
  with pytest.raises(InputError, match=f"look like {words}, not bit_r50x1"):
    rename_into("bit_r50x1", hollow(other, "timm"))


def test_what_is_not_known_is_handed_on_to_be_named():
  weights = conv_cases.weights_in("bit")
  weights |= {
    "stages.0.blocks.0.extra.weight": np.ones(3),
    "stages.0.blocks.0.conv4.weight": np.ones((1, 1, 1, 1)),
  }
  shapes = shapes_of(bit_resnet.BitResNet(**conv_cases.BIT_TINY))
  got = bit_layouts.rename(weights, shapes, "file")
  assert got.keys() - shapes.keys() == {
    "stages.0.blocks.0.extra.weight",
    "stages.0.blocks.0.conv4.weight",
  }


def test_integers_are_handed_on_to_be_refused():
  weights = conv_cases.weights_in("bit")
  weights["stem.conv.weight"] = np.ones((8, 3, 7, 7), np.int8)
  shapes = shapes_of(bit_resnet.BitResNet(**conv_cases.BIT_TINY))
  got = bit_layouts.rename(weights, shapes, "file")
  assert got["stem/kernel"].dtype == np.int8


def test_files_of_no_known_network_are_handed_on_whole():
  arrays = {"features.0.weight": np.ones((2, 2), np.float32)}
  shapes = shapes_of(bit_resnet.BitResNet(**conv_cases.BIT_TINY))
  assert bit_layouts.rename(arrays, shapes, "file") == arrays
