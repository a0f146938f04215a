import numpy as np
import pytest

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.resnet import bit_layouts, bit_resnet
from tests.extract.backbones import conv_cases
from tests.extract.backbones.conv_modules import (
  architecture,
  embed,
  expected_shapes,
  shapes_of,
)


def tiny(compute_dtype: ComputeDtype = "float32"):
  return bit_resnet.BitResNet(
    **conv_cases.BIT_TINY, compute_dtype=compute_dtype
  )


def tiny_params(layout="timm"):
  weights = conv_cases.weights_in("bit", layout)
  return bit_layouts.rename(weights, shapes_of(tiny()), "file")


@pytest.mark.slow
@pytest.mark.parametrize("side", conv_cases.SIDES)
def test_embeddings_match_timm(side):
  got = embed(tiny(), tiny_params(), conv_cases.draw_images(side))
  want = conv_cases.expected_output("bit", side)
  assert conv_cases.cosine(got, want).min() >= 0.9999
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("layout", ["npz", "transformers"])
def test_the_other_layouts_hold_the_same_network(layout):
  want, got = tiny_params(), tiny_params(layout)
  assert got.keys() == want.keys()
  for key, array in want.items():
    np.testing.assert_array_equal(got[key], array, err_msg=key)


@pytest.mark.slow
def test_bfloat16_stays_close():
  got = embed(tiny("bfloat16"), tiny_params(), conv_cases.draw_images(64))
  want = conv_cases.expected_output("bit", 64)
  assert conv_cases.cosine(got, want).min() >= 0.999


@pytest.mark.parametrize(
  ("name", "millions"),
  # Of timm, less the head of 21,843 classes.
  [("bit_r50x1", 23.5), ("bit_r101x3", 381.8), ("bit_r152x4", 928.3)],
)
def test_sizes_have_the_published_number_of_parameters(name, millions):
  count = sum(np.prod(shape) for shape in expected_shapes(name).values())
  assert count / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(
  "name", ["bit_r50", "bit_r50x0", "bit_r18x1", "bit_r50x04", "xbit_r50x1"]
)
def test_other_names_mean_no_network(name):
  assert bit_resnet.find(name) is None


@pytest.mark.parametrize("name", bit_resnet.EXAMPLES)
def test_examples_are_found_under_their_name(name):
  found = architecture(name)
  assert found.name == name
  assert found.embeddings == ("pooled",)
  assert found.reference.resize == "square"
  assert found.reference.resample == "bilinear"
  assert found.reference.image_size == (480 if name == "bit_r152x4" else 448)
