import hashlib
import math

import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.extract_config import BackboneConfig, PreprocessConfig
from oneshot_dp.extract.backbones.registry import (
  backbone_names,
  find_architecture,
  load_backbone,
  parameter_shapes,
)
from oneshot_dp.extract.backbones.vit.glyph_vit import NAME, WEIGHTS
from oneshot_dp.pipeline.commands.data.backbone_list import backbones

EMBEDDED = BackboneConfig(name=NAME)


@pytest.fixture(scope="module")
def data() -> bytes:
  return WEIGHTS.read_bytes()


def test_the_embedded_file_is_small_and_in_half_precision(data):
  assert len(data) <= 2_000_000
  arrays = safetensors.numpy.load(data)
  assert {array.dtype for array in arrays.values()} == {np.dtype(np.float16)}
  assert 500_000 <= sum(array.size for array in arrays.values()) <= 1_000_000


def test_it_is_read_where_no_weights_are_given(data):
  backbone = load_backbone(EMBEDDED, PreprocessConfig())
  assert backbone.weights_sha256 == hashlib.sha256(data).hexdigest()
  assert (backbone.feature_dim, backbone.embedding) == (128, "pre_logits")
  arrays = safetensors.numpy.load(data)
  np.testing.assert_array_equal(
    backbone.params["embedding"]["kernel"], arrays["embedding/kernel"]
  )


def test_weights_that_are_given_are_read_instead(data, tmp_path):
  zeros = {
    name: np.zeros_like(array)
    for name, array in safetensors.numpy.load(data).items()
  }
  path = tmp_path / "zeros.safetensors"
  path.write_bytes(safetensors.numpy.save(zeros))
  backbone = load_backbone(
    BackboneConfig(name=NAME, weights=str(path)), PreprocessConfig()
  )
  assert not backbone.params["embedding"]["kernel"].any()
  expected = hashlib.sha256(path.read_bytes()).hexdigest()
  assert backbone.weights_sha256 == expected


def test_it_is_listed_and_described():
  assert NAME in backbone_names()
  text = backbones(NAME).text
  assert "embedded" in text
  assert "32 px" in text
  assert "0.6 million" in text


def test_the_parameters_are_those_of_the_network(data):
  architecture = find_architecture(NAME)
  module = architecture.build("pre_logits", "float32")
  shapes = parameter_shapes(module, architecture.reference.image_size)
  arrays = safetensors.numpy.load(data)
  head = arrays.pop("head/kernel")
  assert {name: array.shape for name, array in arrays.items()} == shapes
  assert head.size + sum(map(math.prod, shapes.values())) < 1_000_000
