"""Weights that `extract` was given are found again by `predict`."""

import pathlib

import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.backbones.backbone import Backbone, load_backbone
from oneshot_dp.extract.cache.format import sha256_of
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.train import TrainedHead
from oneshot_dp.pipeline.commands import extract
from oneshot_dp.pipeline.heads.head_folder import SavedHead
from oneshot_dp.pipeline.prediction import backbone_of
from tests.extract.backbones import drawn


def head_of(backbone: Backbone) -> SavedHead:
  """A head of zeros whose receipt states this backbone."""
  identity = backbone.identity
  fingerprint = sha256_of([identity, backbone.feature_dim])
  stated = {"backbone": identity, "backbone_fingerprint": fingerprint}
  weights = LinearHead(
    kernel=np.zeros((backbone.feature_dim, 2), np.float32),
    bias=np.zeros(2, np.float32),
  )
  trained = TrainedHead(
    head=weights,
    name="lamb",
    options={},
    noise_source="no noise",
    private=False,
  )
  return SavedHead(
    path=pathlib.Path("head"),
    trained=trained,
    receipt={"stated": stated},
    receipt_sha256="",
  )


@pytest.fixture
def weights(tmp_path, monkeypatch):
  """ViT-Ti/16's weights in a file, and a user who has noted none yet."""
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  arrays = drawn.vit_weights("published/timm/vit_ti16/vit_tiny_patch16_224")
  path = tmp_path / "model.safetensors"
  path.write_bytes(safetensors.numpy.save(arrays))
  return path


@pytest.mark.slow
def test_predict_finds_the_weights_that_extract_was_given(weights):
  trained_on = load_backbone("vit_ti16", str(weights))
  found = backbone_of(head_of(trained_on))
  assert found.weights_path == weights
  assert found.identity == trained_on.identity


@pytest.mark.slow
def test_predict_without_the_weights_names_the_flag_that_finds_them(weights):
  trained_on = load_backbone("vit_ti16", str(weights))
  weights.rename(weights.with_name("moved.safetensors"))

  with pytest.raises(RunError, match="name their file with --weights"):
    backbone_of(head_of(trained_on))


@pytest.mark.slow
def test_predict_prepares_images_as_the_head_states(weights):
  """Also where nothing but the receipt says how."""
  stated = Preprocessing(image_size=48, mean=(0.4, 0.4, 0.4))
  trained_on = load_backbone("vit_ti16", str(weights), preprocess=stated)
  found = backbone_of(head_of(trained_on))
  assert found.preprocessing == stated


@pytest.mark.slow
def test_extract_without_backbone_names_the_default_that_it_takes(
  weights, tmp_path, capsys
):
  (tmp_path / "empty").mkdir()
  flags = extract.Flags(
    source=(str(tmp_path / "empty"),),
    out=str(tmp_path / "cache"),
    weights=str(weights),
  )
  with pytest.raises(InputError):
    extract.run(flags)
  assert "--backbone is not given: vit_b16 is taken" in capsys.readouterr().err
