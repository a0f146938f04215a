import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.resnet import nf_layouts, norm_free
from oneshot_dp.extract.backbones.resnet.nf_layouts import Kind
from oneshot_dp.extract.backbones.resnet.norm_free import NormFreeNet
from tests.extract.backbones import conv_cases
from tests.extract.backbones.conv_modules import (
  architecture,
  embed,
  shapes_of,
)

SIZES: dict[Kind, dict] = {
  "nfnet": conv_cases.NFNET_TINY,
  "nf_resnet": conv_cases.NF_RESNET_TINY,
}


def tiny(kind: Kind, compute_dtype: ComputeDtype = "float32"):
  return NormFreeNet(kind, **SIZES[kind], compute_dtype=compute_dtype)


def tiny_params(kind: Kind):
  return nf_layouts.rename(
    conv_cases.weights_in(kind),
    shapes_of(tiny(kind)),
    "file",
    kind=kind,
    blocks=SIZES[kind]["blocks"],
  )


@pytest.mark.slow
@pytest.mark.parametrize("side", conv_cases.SIDES)
@pytest.mark.parametrize("kind", SIZES)
def test_embeddings_match_timm(kind, side):
  got = embed(tiny(kind), tiny_params(kind), conv_cases.draw_images(side))
  want = conv_cases.expected_output(kind, side)
  assert conv_cases.cosine(got, want).min() >= 0.9999
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
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


@pytest.mark.parametrize(
  ("name", "side", "resize"),
  [
    ("nf_resnet50", 288, 306),
    ("nf_resnet26", 288, 306),
    ("nf_resnet101", 288, 306),
    ("nfnet_f0", 256, 284),
    ("nfnet_f1", 320, 351),
    ("nfnet_f2", 352, 382),
    ("nfnet_f3", 416, 442),
  ],
)
def test_examples_are_preprocessed_as_published(name, side, resize):
  assert name in norm_free.EXAMPLES
  found = architecture(name)
  assert found.name == name
  reference = found.reference
  assert (reference.image_size, reference.resize) == (side, resize)
  assert reference.resample == "bicubic"
  assert reference.mean == (0.485, 0.456, 0.406)
  assert reference.std == (0.229, 0.224, 0.225)


@pytest.mark.parametrize(
  "name", ["nf_resnet18", "nf_seresnet50", "resnet50", "nfnet_f4", "nfnet"]
)
def test_other_names_mean_no_network(name):
  assert norm_free.find(name) is None
