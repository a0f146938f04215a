import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.extract.backbones.resnet import bit_resnet, norm_free
from tests.extract.backbones import conv_cases
from tests.extract.backbones.conv_modules import (
  TINY,
  architecture,
  embed,
  renamed,
  shapes_of,
)


def params_of(case, layout="timm"):
  return renamed(case, conv_cases.weights_in(case, layout))


@pytest.mark.slow
@pytest.mark.parametrize("side", conv_cases.SIDES)
@pytest.mark.parametrize("case", TINY)
def test_embeddings_match_timm(case, side):
  got = embed(TINY[case], params_of(case), conv_cases.draw_images(side))
  want = conv_cases.expected_output(case, side)
  assert conv_cases.cosine(got, want).min() >= 0.9999
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["bit", "nfnet"])
def test_bfloat16_stays_close(case):
  # With kernels that have been rounded already, as the registry stores them.
  params = {
    key: v.astype(ml_dtypes.bfloat16) if key.endswith("kernel") else v
    for key, v in params_of(case).items()
  }
  halved = TINY[case].clone(compute_dtype="bfloat16")
  got = embed(halved, params, conv_cases.draw_images(37))
  want = conv_cases.expected_output(case, 37)
  assert conv_cases.cosine(got, want).min() >= 0.999


@pytest.mark.parametrize("case", TINY)
def test_the_parameters_are_those_of_the_module(case):
  shapes = {key: v.shape for key, v in params_of(case).items()}
  assert shapes == shapes_of(TINY[case])


@pytest.mark.parametrize("layout", ["npz", "transformers"])
def test_the_other_layouts_of_bit_hold_the_same_network(layout):
  want, got = params_of("bit"), params_of("bit", layout)
  assert got.keys() == want.keys()
  for key, array in want.items():
    np.testing.assert_array_equal(got[key], array, err_msg=key)


def test_other_names_mean_no_network():
  for name in (
    *("bit_r50", "bit_r50x0", "bit_r18x1", "bit_r50x04", "xbit_r50x1"),
    *("nf_resnet18", "nf_seresnet50", "resnet50", "nfnet_f4", "nfnet"),
  ):
    assert bit_resnet.find(name) is norm_free.find(name) is None


@pytest.mark.parametrize("name", [*bit_resnet.EXAMPLES, *norm_free.EXAMPLES])
def test_examples_are_preprocessed_as_published(name):
  found = architecture(name)
  assert found.name == name
  assert found.embeddings == ("pooled",)
  sides = {
    "bit_r152x4": (480, "square"),
    "nfnet_f0": (256, 284),
    "nfnet_f1": (320, 351),
    "nfnet_f2": (352, 382),
    "nfnet_f3": (416, 442),
  }
  bit = name.startswith("bit")
  side = sides.get(name, (448, "square") if bit else (288, 306))
  reference = found.reference
  assert (reference.image_size, reference.resize) == side
  assert reference.resample == ("bilinear" if bit else "bicubic")
  assert bit or reference.mean == (0.485, 0.456, 0.406)
  assert bit or reference.std == (0.229, 0.224, 0.225)
