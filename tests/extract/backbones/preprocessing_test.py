"""Preprocessing belongs to the weights: a config.json, or else the name."""

import json
import os
import shutil
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.backbones.backbone import load_backbone
from oneshot_dp.extract.backbones.pretrained_config import (
  preprocessing_from_timm,
)
from oneshot_dp.extract.images import Preprocessing
from tests.extract import local_hub
from tests.extract.backbones import drawn
from tests.extract.refusals import refused

DINO_MEAN = (0.485, 0.456, 0.406)
DINO_STD = (0.229, 0.224, 0.225)
TIMM_CONFIG = {
  "input_size": [3, 32, 32],
  "interpolation": "bilinear",
  "crop_pct": 0.875,
  "crop_mode": "center",
  "mean": list(DINO_MEAN),
  "std": list(DINO_STD),
}


def timm_json(**changes: Any) -> bytes:
  """A config.json as timm writes it."""
  config = {"architecture": "vit", "pretrained_cfg": TIMM_CONFIG | changes}
  return json.dumps(config).encode()


@pytest.fixture(scope="module")
def vit_bytes() -> bytes:
  arrays = drawn.vit_weights("published/timm/vit_ti16/vit_tiny_patch16_224")
  return safetensors.numpy.save(arrays)


@pytest.fixture
def vit_file(tmp_path, vit_bytes) -> str:
  path = tmp_path / "model.safetensors"
  path.write_bytes(vit_bytes)
  return str(path)


@pytest.mark.slow
def test_config_beside_the_weights_says_how_images_are_prepared(
  tmp_path, vit_file
):
  """As of DINO's or MAE's weights under a ViT's name."""
  (tmp_path / "config.json").write_bytes(timm_json())
  backbone = load_backbone("vit_ti16", vit_file)
  assert backbone.preprocessing == Preprocessing(
    image_size=32,
    resize=36,
    resample="bilinear",
    mean=DINO_MEAN,
    std=DINO_STD,
  )
  assert backbone.preprocessing_source == str(tmp_path / "config.json")
  assert f"as {tmp_path}/config.json says" in backbone.summary


@pytest.mark.slow
def test_name_says_how_images_are_prepared_where_there_is_no_config(vit_file):
  backbone = load_backbone("deit_ti16", vit_file)
  assert backbone.preprocessing.mean == DINO_MEAN
  assert backbone.preprocessing.resize == 256
  assert backbone.summary.endswith("as the name deit_ti16 says")


def test_config_that_timm_did_not_write_is_passed_over(tmp_path, vit_file):
  (tmp_path / "config.json").write_text('{"model_type": "vit"}')
  backbone = load_backbone("vit_ti16", vit_file)
  assert backbone.preprocessing_source == "the name vit_ti16"


@pytest.mark.parametrize(
  ("config", "others"),
  [(None, ("deit_ti16",)), ({"tag": "dino"}, ())],
)
def test_weights_that_only_their_name_tells_from_others_are_warned_of(
  tmp_path, vit_file, config, others
):
  """Another normalization costs many points, and no shape tells of it."""
  if config is not None:
    (tmp_path / "config.json").write_bytes(timm_json(**config))
  backbone = load_backbone("vit_ti16", vit_file)
  assert backbone.names_alike == others
  assert ("DINO or MAE" in backbone.doubt) == bool(others)


@pytest.mark.parametrize(
  ("name", "tag"), [("clip_b16", "laion2b"), ("clip_laion2b_b16", "openai")]
)
def test_clip_weights_of_another_activation_are_refused_by_their_config(
  tmp_path, name, tag
):
  """No array tells GELU from quick-GELU."""
  config = json.loads(timm_json(tag=tag))
  config["architecture"] = "vit_base_patch16_clip_224"
  (tmp_path / "config.json").write_text(json.dumps(config))
  file = tmp_path / "model.safetensors"
  file.write_bytes(b"")
  with refused(f"backbone {name}: .* weights are vit_base_.*{tag}: give the"):
    load_backbone(name, str(file))


@pytest.mark.slow
def test_flags_change_what_the_config_says(tmp_path, vit_file):
  (tmp_path / "config.json").write_bytes(timm_json())
  flags = PreprocessConfig(image_size=64)
  preprocessing = load_backbone(
    "vit_ti16", vit_file, preprocess=flags
  ).preprocessing
  assert preprocessing.image_size == 64
  assert preprocessing.resize == 72
  assert preprocessing.mean == DINO_MEAN


@pytest.mark.slow
def test_whole_preprocessing_is_taken_as_it_is(tmp_path, vit_file):
  """A head's receipt states it: no config.json changes a prediction."""
  (tmp_path / "config.json").write_bytes(timm_json())
  stated = Preprocessing(image_size=48)
  backbone = load_backbone("vit_ti16", vit_file, preprocess=stated)
  assert backbone.preprocessing == stated


@pytest.mark.slow
@pytest.mark.parametrize("location", [None, "hf://timm/other@main"])
def test_config_of_the_hub_comes_with_the_weights(
  tmp_path, monkeypatch, vit_bytes, location
):
  tag = "vit_tiny_patch16_224.augreg_in21k"
  if location is not None:
    tag = "other"
    location = f"{location}/model.safetensors"
  files = {
    f"timm/{tag}/model.safetensors": vit_bytes,
    f"timm/{tag}/config.json": timm_json(),
  }
  with local_hub.serve_files(monkeypatch, tmp_path / "hub", files):
    backbone = load_backbone("vit_ti16", location)
  assert backbone.preprocessing.mean == DINO_MEAN
  assert backbone.preprocessing.image_size == 32
  assert backbone.preprocessing_source == f"hf://timm/{tag}@main/config.json"


@pytest.mark.slow
def test_name_is_taken_where_the_hub_has_no_config(
  tmp_path, monkeypatch, vit_bytes
):
  files = {"timm/other/model.safetensors": vit_bytes}
  with local_hub.serve_files(monkeypatch, tmp_path / "hub", files):
    backbone = load_backbone("vit_ti16", "hf://timm/other/model.safetensors")
  assert backbone.preprocessing_source == "the name vit_ti16"


@pytest.mark.slow
def test_dinov2_keeps_its_image_size_beside_the_config_of_its_weights(
  tmp_path,
):
  arrays = drawn.vit_weights(
    "published/timm/dinov2_s14/vit_small_patch14_dinov2"
  )
  path = tmp_path / "model.safetensors"
  path.write_bytes(safetensors.numpy.save(arrays))
  config = timm_json(input_size=[3, 518, 518], interpolation="bicubic")
  (tmp_path / "config.json").write_bytes(config)
  preprocessing = load_backbone("dinov2_s14", str(path)).preprocessing
  assert preprocessing.image_size == 224
  assert preprocessing.mean == DINO_MEAN


@pytest.mark.parametrize(
  ("changes", "want"),
  [
    ({}, (32, 36, True)),
    ({"crop_pct": 1.0}, (32, 32, True)),
    ({"crop_pct": 1.0, "crop_mode": "squash"}, (32, "square", True)),
    ({"crop_pct": 0.9, "crop_mode": "squash"}, (32, 35, False)),
    ({"test_input_size": [3, 48, 48], "test_crop_pct": 1.0}, (48, 48, True)),
  ],
)
def test_config_is_read_as_timm_evaluates(changes, want):
  preprocessing = preprocessing_from_timm(TIMM_CONFIG | changes)
  size = preprocessing.image_size
  is_square = preprocessing.resize == "square"
  aspect = preprocessing.keep_aspect or is_square
  assert (size, preprocessing.resize, aspect) == want


BAD_CONFIGS: list[tuple[bytes, str]] = [
  (b"{", "not valid JSON"),
  (b"[" * 100_000, "not valid JSON"),
  (b"\xff", "not valid JSON"),
  (b'{"pretrained_cfg": 1}', "not a preprocessing"),
  (timm_json(mean=[0.5, 0.5]), "not a preprocessing"),
  (timm_json(mean=[float("nan")] * 3), "not a preprocessing"),
  (timm_json(std=[0.0, 0.5, 0.5]), "not a preprocessing"),
  (timm_json(input_size=[3, 32, 48]), "not a preprocessing"),
  (timm_json(input_size=[3, 10**9, 10**9]), "not a preprocessing"),
  (timm_json(crop_pct=1e-9), "not a preprocessing"),
  (timm_json(crop_mode="border"), "not a preprocessing .* crop_mode 'border'"),
  (timm_json(interpolation="lanczos"), "not a preprocessing"),
  (b" " * (2**20 + 1), "more than"),
]


@pytest.mark.parametrize(("config", "message"), BAD_CONFIGS)
def test_config_that_cannot_be_followed_is_refused_in_one_line(
  tmp_path, vit_file, config, message
):
  (tmp_path / "config.json").write_bytes(config)
  with refused(f"config.json.* {message}"):
    load_backbone("vit_ti16", vit_file)


def test_fifo_in_place_of_the_config_is_refused(tmp_path, vit_file):
  os.mkfifo(tmp_path / "config.json")
  with refused("not a regular file"):
    load_backbone("vit_ti16", vit_file)


@pytest.fixture
def google_file(tmp_path) -> str:
  """ViT-Ti/16 as Google publishes it."""
  arrays = drawn.vit_weights("published/timm/vit_ti16/vit_tiny_patch16_224")
  layout = drawn.GoogleViTLayout(
    1, 3, 2, "Transformer/posembed_input/pos_embedding"
  )
  google = drawn.google_vit_arrays(arrays, layout, heads=3)
  path = tmp_path / "ViT-Ti_16.npz"
  np.savez(path, allow_pickle=False, **google)
  return str(path)


def test_google_weights_load_under_the_name_of_google_s_network(google_file):
  backbone = load_backbone("vit_ti16", google_file)
  assert not backbone.doubt
  assert backbone.preprocessing.mean == (0.5, 0.5, 0.5)


def test_google_weights_under_a_name_of_another_normalization_are_refused(
  google_file,
):
  """It would cost 22 points of accuracy, and nothing else would fail."""
  with refused("trained these weights with mean 0.5 .* use the name of Google"):
    load_backbone("deit_ti16", google_file)


@pytest.mark.slow
def test_published_vit_under_the_name_of_deit_is_refused(shared_data):
  with refused("trained these weights with mean 0.5 and std 0.5"):
    load_backbone("deit_ti16", str(shared_data / "vit_ti16_in1k.npz"))


def test_google_weights_beside_another_config_are_refused(
  tmp_path, google_file
):
  (tmp_path / "config.json").write_bytes(timm_json())
  with refused("trained these weights with mean 0.5"):
    load_backbone("vit_ti16", google_file)


@pytest.mark.slow
def test_wrn_of_google_s_layout_keeps_the_mean_of_cifar(tmp_path):
  path = tmp_path / "wrn.npz"
  np.savez(path, allow_pickle=False, **drawn.wrn_weights(16, 1))
  backbone = load_backbone("wrn_16_1", str(path))
  assert backbone.preprocessing.mean[0] == 0.49139968


def test_weights_copied_without_their_config_are_prepared_by_name(
  tmp_path, vit_file
):
  (tmp_path / "config.json").write_bytes(timm_json())
  other = tmp_path / "other"
  other.mkdir()
  copy = shutil.copy(vit_file, other)
  assert load_backbone("vit_ti16", copy).preprocessing == Preprocessing()
