import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.resnet import nf_layouts
from oneshot_dp.extract.backbones.resnet.norm_free import Kind, NormFreeNet
from tests.extract.backbones import conv_cases
from tests.extract.backbones.conv_modules import embed, shapes_of

SIZES: dict[Kind, dict] = {
  "nfnet": conv_cases.NFNET_TINY,
  "nf_resnet": conv_cases.NF_RESNET_TINY,
}


def tiny(kind: Kind, compute_dtype: ComputeDtype = "float32"):
  return NormFreeNet(kind, **SIZES[kind], compute_dtype=compute_dtype)


def tiny_params(kind: Kind):
  return nf_layouts.rename(
    tiny(kind),
    conv_cases.weights_in(kind),
    shapes_of(tiny(kind)),
    "file",
  )


@pytest.mark.parametrize("side", conv_cases.SIDES)
@pytest.mark.parametrize("kind", SIZES)
def test_embeddings_match_timm(kind, side):
  got = embed(tiny(kind), tiny_params(kind), conv_cases.draw_images(side))
  want = conv_cases.expected_output(kind, side)
  assert conv_cases.cosine(got, want).min() >= 0.9999
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_bfloat16_stays_close():
  # With kernels that have been rounded already, as the registry stores them.
  params = {
    key: v.astype(ml_dtypes.bfloat16) if key.endswith("kernel") else v
    for key, v in tiny_params("nfnet").items()
  }
  got = embed(tiny("nfnet", "bfloat16"), params, conv_cases.draw_images(37))
  want = conv_cases.expected_output("nfnet", 37)
  assert conv_cases.cosine(got, want).min() >= 0.999


@pytest.mark.parametrize("kind", SIZES)
def test_the_parameters_are_those_of_the_module(kind):
  shapes = {key: v.shape for key, v in tiny_params(kind).items()}
  assert shapes == shapes_of(tiny(kind))
