"""Backbones by name, with weights as users have them."""

import dataclasses
import hashlib
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.backbones.backbone import (
  Backbone,
  default_preprocessing,
  load_backbone,
  timm_tensors,
)
from oneshot_dp.extract.backbones.names import backbone_names, backbone_spec
from oneshot_dp.extract.images import Preprocessing, resize_and_crop
from tests.extract.backbones import drawn
from tests.extract.refusals import refused

SMALL = PreprocessConfig(image_size=32)
GLYPHS = pathlib.Path(backbone_spec("glyph_vit").weights or "")
GOOGLE = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/"


def save(path: pathlib.Path, arrays: dict) -> str:
  arrays = {k: np.asarray(v, order="C") for k, v in arrays.items()}
  path.write_bytes(safetensors.numpy.save(arrays))
  return str(path)


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
  return drawn.vit_weights("published/timm/vit_ti16/vit_tiny_patch16_224")


@pytest.fixture(scope="module")
def weights(arrays, tmp_path_factory) -> str:
  return save(tmp_path_factory.mktemp("w") / "model.safetensors", arrays)


@pytest.fixture(scope="module")
def backbone(weights) -> Backbone:
  return load_backbone("vit_ti16", weights)


def embed(backbone, images) -> np.ndarray:
  return np.asarray(jax.jit(backbone.apply)(backbone.params, images))


@pytest.mark.slow
def test_real_weights_give_the_embeddings_of_an_independent_program(
  shared_data,
):
  """float32, Pillow's bicubic resize, class token: shared/data/README.md."""
  path = str(shared_data / "vit_ti16_in1k.npz")
  backbone = load_backbone("vit_ti16", weights=path)
  with np.load(shared_data / "cifar10_images.npz") as data:
    photos = data["test_image"][:3]
  with np.load(shared_data / "cifar10_images_vit_ti16_embedding.npz") as data:
    want = data["test_embedding"][:3]
  shown = [resize_and_crop(x, backbone.preprocessing) for x in photos]
  np.testing.assert_allclose(embed(backbone, np.stack(shown)), want, atol=2e-4)


def test_the_glyph_vit_brings_its_weights_and_says_what_it_is():
  assert GLYPHS.stat().st_size < 1_400_000
  backbone = load_backbone("glyph_vit")
  sha256 = hashlib.sha256(GLYPHS.read_bytes()).hexdigest()
  identity = backbone.identity
  assert identity.pop("preprocess")["image_size"] == 32
  assert identity == {
    "name": "glyph_vit",
    "layer": "pre_logits",
    "feature_dim": 128,
    "weights_sha256": sha256,
    "code_sha256": None,
  }
  assert backbone.compute_dtype == "float32"
  assert "array" not in repr(backbone)
  again = load_backbone("glyph_vit", None, sha256.upper())
  assert again.apply is backbone.apply  # compiled once
  with refused("has SHA-256 .* not 0000"):
    load_backbone("glyph_vit", None, "0" * 64)
  # As the code that trained it embedded these pixels (commit 4ab1d5e).
  x = np.arange(3072, dtype=np.uint32) * np.uint32(2654435761)
  got = embed(backbone, (x >> 24).astype(np.uint8).reshape(1, 32, 32, 3))
  want = [0.36516008, 0.95585799, -0.97840875, 0.77094132]
  np.testing.assert_allclose(got[0, :4], want, atol=1e-5)
  assert load_backbone("glyph_vit", embedding="cls").embedding == "cls"


def test_the_arrays_of_timm_come_back(backbone, arrays):
  assert backbone.timm == "vit_tiny_patch16_224"
  found = timm_tensors(backbone)
  kept = {k: v for k, v in arrays.items() if not k.startswith("head")}
  assert found.keys() == kept.keys()
  for name, array in kept.items():
    np.testing.assert_array_equal(found[name], array, err_msg=name)
  larger = Preprocessing(image_size=48)
  resized = dataclasses.replace(backbone, preprocessing=larger)
  assert timm_tensors(resized)["pos_embed"].shape == (1, 10, 192)
  with refused("no network that timm has"):
    timm_tensors(load_backbone("glyph_vit"))
  with refused("changed since"):
    timm_tensors(dataclasses.replace(backbone, weights_sha256="0" * 64))


WANTED: list[tuple[str, dict[str, Any], str]] = [
  ("vit_B16", {}, "unknown: did you mean vit_b16"),
  ("vit_b32", {}, "vit_b32: .* does not fit: the weights look like vit_ti16"),
  ("deit_distilled_ti16", {}, "does not fit: the weights look like vit_ti16"),
  ("bit_r50x1", {}, "--backbone bit_r50x1: .* does not fit"),
  ("nfnet_f0", {}, "--backbone nfnet_f0: .* does not fit"),
  ("vit_ti16", {"embedding": "pooled"}, "none of cls, "),
  ("vit_ti16", {"preprocess": PreprocessConfig(image_size=8)}, "below a patch"),
]


def test_the_weights_that_are_wanted_are_named(weights, tmp_path):
  with refused(r"bit_r50x4 has no weights .* give --weights"):
    load_backbone("bit_r50x4")
  for name, settings, said in WANTED:
    with refused(said):
      load_backbone(name, weights, **settings)
  deit = load_backbone("deit_ti16", weights, preprocess=SMALL)
  assert deit.feature_dim == 192
  np.savez(tmp_path / "w.npz", allow_pickle=False, **drawn.wrn_weights(16, 1))
  wrn = load_backbone("wrn_16_1", str(tmp_path / "w.npz"))
  assert (wrn.feature_dim, wrn.preprocessing.image_size) == (64, 32)
  with refused("its only embedding is pooled"):
    load_backbone("wrn_16_1", str(tmp_path / "w.npz"), embedding="cls")


CHANGES = [
  ({"norm.weight": None}, "missing: norm.weight"),
  ({"norm.weight": np.zeros(127)}, r"norm.weight \[127\] instead of \[128\]"),
  ({"blocks.1.attn.qkv.bias": np.full(384, np.nan)}, "not finite"),
  ({"extra\n\x1b[31m": np.zeros(1)}, r"unexpected: extra\\n\\x1b\[31m"),
  ({"pos_embed": np.zeros((5, 128))}, "no square"),
  ({"pos_embed": np.zeros(5)}, "does not fit"),
  ({"patch_embed.proj.weight": np.zeros((128, 4, 4, 4))}, "patch_embed"),
  ({"blocks.99999999.norm1.weight": np.zeros(128)}, "missing: blocks"),
  ({"cls_token": np.zeros((1, 1, 127))}, "cls_token"),
  ({"pos_embed": np.zeros((1, 66, 128), np.float16)}, "no square"),
  ({"norm.bias": np.zeros(128, np.int32)}, "int32, not floating"),
  ({"Transformer/encoder_norm/scale": np.zeros(3)}, "does not fit"),
  ({f"{GOOGLE}key/kernel": np.zeros(())}, "does not fit"),
]


def test_weights_that_do_not_fit_are_one_line(tmp_path):
  glyphs = safetensors.numpy.load_file(GLYPHS)
  for change, said in CHANGES:
    changed = {k: v for k, v in {**glyphs, **change}.items() if v is not None}
    path = save(tmp_path / "w.safetensors", changed)
    with refused(said):
      load_backbone("glyph_vit", path)


SIZES = {
  "vit_ti16": (224, "square"),
  "deit_b16": (224, 256),
  "dinov2_reg_g14": (224, 256),
  "siglip_b16": (224, "square"),
  "siglip_l16": (256, "square"),
  "siglip_so400m14": (384, "square"),
  "bit_r50x1": (448, "square"),
  "bit_r152x4": (480, "square"),
  "nf_resnet50": (288, 306),
  "nfnet_f0": (256, 284),
  "nfnet_f1": (320, 351),
  "nfnet_f2": (352, 382),
  "nfnet_f3": (416, 442),
  "wrn_28_10": (32, "square"),
  "vit_b14": (224, "square"),  # families take other sizes as well
}


def test_a_name_says_where_weights_are_and_how_images_are_shown():
  for name in backbone_names():
    row = backbone_spec(name)
    address = f"hf://timm/{row.timm}@main/model.safetensors"
    assert row.weights == address or name in ("wrn_28_10", "glyph_vit")
  for name, size in SIZES.items():
    shown = default_preprocessing(backbone_spec(name))
    assert (shown.image_size, shown.resize) == size
    bilinear = name.startswith(("bit", "wrn"))
    assert shown.resample == ("bilinear" if bilinear else "bicubic")
    cropped = name.startswith(("deit", "dino", "nf"))
    own = {"wrn_28_10": 0.49139968}.get(name, 0.485 if cropped else 0.5)
    assert shown.mean[0] == own


def test_other_names_mean_no_network():
  for name in (
    *("bit_r50", "bit_r50x0", "bit_r18x1", "bit_r50x04", "xbit_r50x1"),
    *("nf_resnet18", "resnet50", "nfnet_f4", "nfnet", "vit_b0", "vit_m16"),
    *("wrn_17_4", "vit_b16\n", "", "vit-b16", "\x1b[31m"),
  ):
    with refused("--backbone '.*' is unknown"):
      backbone_spec(name)
