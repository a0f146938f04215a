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

OTHER_SHA256 = "0".zfill(64)
SMALL = PreprocessConfig(image_size=32)
GLYPH_WEIGHTS = pathlib.Path(backbone_spec("glyph_vit").weights or "")
GLYPH_SHA256 = hashlib.sha256(GLYPH_WEIGHTS.read_bytes()).hexdigest()
GOOGLE_ATTENTION = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1"


def save(path: pathlib.Path, arrays: dict) -> str:
  contiguous = {k: np.asarray(v, order="C") for k, v in arrays.items()}
  path.write_bytes(safetensors.numpy.save(contiguous))
  return str(path)


@pytest.fixture(scope="module")
def vit_arrays() -> dict[str, np.ndarray]:
  return drawn.vit_weights("published/timm/vit_ti16/vit_tiny_patch16_224")


@pytest.fixture(scope="module")
def vit_file(vit_arrays, tmp_path_factory) -> str:
  return save(tmp_path_factory.mktemp("w") / "model.safetensors", vit_arrays)


@pytest.fixture(scope="module")
def vit(vit_file) -> Backbone:
  return load_backbone("vit_ti16", vit_file)


@pytest.fixture
def wrn_file(tmp_path) -> str:
  path = tmp_path / "wrn.npz"
  np.savez(path, allow_pickle=False, **drawn.wrn_weights(16, 1))
  return str(path)


def embed(backbone, images) -> np.ndarray:
  return np.asarray(jax.jit(backbone.apply)(backbone.params, images))


@pytest.mark.slow
def test_published_vit_gives_the_embeddings_of_an_independent_program(
  shared_data,
):
  """float32, Pillow's bicubic resize, class token: shared/data/README.md."""
  path = str(shared_data / "vit_ti16_in1k.npz")
  backbone = load_backbone("vit_ti16", weights=path)
  with np.load(shared_data / "cifar10_images.npz") as data:
    photos = data["test_image"][:3]
  with np.load(shared_data / "cifar10_images_vit_ti16_embedding.npz") as data:
    want = data["test_embedding"][:3]
  prepared = [resize_and_crop(x, backbone.preprocessing) for x in photos]
  embeddings = embed(backbone, np.stack(prepared))
  np.testing.assert_allclose(embeddings, want, atol=2e-4)


def test_glyph_vit_comes_with_its_weights():
  assert GLYPH_WEIGHTS.stat().st_size < 1_400_000
  backbone = load_backbone("glyph_vit")
  identity = backbone.identity
  assert identity.pop("preprocess")["image_size"] == 32
  assert identity == {
    "name": "glyph_vit",
    "layer": "pre_logits",
    "feature_dim": 128,
    "weights_sha256": GLYPH_SHA256,
    "code_sha256": None,
  }
  assert backbone.compute_dtype == "float32"


def test_glyph_vit_gives_the_embeddings_of_the_code_that_trained_it():
  """Of these pixels, at commit 4ab1d5e."""
  x = np.arange(3072, dtype=np.uint32) * np.uint32(2654435761)
  image = (x >> 24).astype(np.uint8).reshape(1, 32, 32, 3)
  embedding = embed(load_backbone("glyph_vit"), image)
  want = [0.36516008, 0.95585799, -0.97840875, 0.77094132]
  np.testing.assert_allclose(embedding[0, :4], want, atol=1e-5)


def test_backbone_repr_has_no_arrays():
  assert "array" not in repr(load_backbone("glyph_vit"))


def test_backbone_loaded_twice_is_compiled_once():
  first = load_backbone("glyph_vit")
  second = load_backbone("glyph_vit", None, GLYPH_SHA256.upper())
  assert second.apply is first.apply


def test_backbone_of_another_sha256_is_refused():
  with refused("has SHA-256 .* not 0000"):
    load_backbone("glyph_vit", None, OTHER_SHA256)


def test_backbone_reads_the_layer_that_is_asked_for():
  assert load_backbone("glyph_vit", embedding="cls").embedding == "cls"


@pytest.mark.slow
def test_timm_tensors_are_the_arrays_of_the_file_without_classifier(
  vit, vit_arrays
):
  assert vit.timm == "vit_tiny_patch16_224"
  tensors = timm_tensors(vit)
  without_head = {k: v for k, v in vit_arrays.items() if k[:4] != "head"}
  assert tensors.keys() == without_head.keys()
  for name, array in without_head.items():
    np.testing.assert_array_equal(tensors[name], array, err_msg=name)


@pytest.mark.slow
def test_timm_tensors_have_positions_of_the_image_size(vit):
  larger = Preprocessing(image_size=48)
  resized = dataclasses.replace(vit, preprocessing=larger)
  assert timm_tensors(resized)["pos_embed"].shape == (1, 10, 192)


def test_timm_tensors_of_a_network_unknown_to_timm_are_refused():
  with refused("has no timm equivalent"):
    timm_tensors(load_backbone("glyph_vit"))


@pytest.mark.slow
def test_timm_tensors_of_a_changed_file_are_refused(vit):
  with refused("changed since"):
    timm_tensors(dataclasses.replace(vit, weights_sha256=OTHER_SHA256))


MISFITS: list[tuple[str, dict[str, Any], str]] = [
  ("vit_B16", {}, "unknown: did you mean vit_b16"),
  ("vit_b32", {}, "vit_b32: .* does not fit: the weights look like vit_ti16"),
  ("deit_distilled_ti16", {}, "does not fit: the weights look like vit_ti16"),
  ("bit_r50x1", {}, "backbone bit_r50x1: .* does not fit"),
  ("nfnet_f0", {}, "backbone nfnet_f0: .* does not fit"),
  ("vit_ti16", {"embedding": "pooled"}, "none of cls, "),
  ("vit_ti16", {"preprocess": PreprocessConfig(image_size=8)}, "below a patch"),
]


@pytest.mark.parametrize(("name", "settings", "message"), MISFITS)
def test_weights_under_a_name_that_does_not_fit_are_refused(
  vit_file, name, settings, message
):
  with refused(message):
    load_backbone(name, vit_file, **settings)


def test_weights_of_a_size_that_nobody_published_are_described(
  vit_arrays, tmp_path
):
  arrays = {}
  for name, array in vit_arrays.items():
    if not name.startswith("blocks.11."):
      arrays[name] = array
  file = save(tmp_path / "model.safetensors", arrays)

  with refused("look like vit of width 192, 11 blocks and patches of 16"):
    load_backbone("vit_ti16", file)


@pytest.mark.slow
def test_positions_that_are_resized_to_the_images_are_told(vit, vit_file):
  small = load_backbone("vit_ti16", vit_file, preprocess=SMALL)

  resized = "position embeddings resized from 14 x 14 to 2 x 2"
  assert resized in small.summary
  assert "position" not in vit.summary


def test_backbone_without_published_weights_asks_for_them():
  with refused(r"bit_r50x4 has no weights to download: .* give its weights"):
    load_backbone("bit_r50x4")
  with refused("wrn_28_10 has no weights to download: give its weights"):
    load_backbone("wrn_28_10")


def test_slip_that_follows_a_pattern_of_names_is_told_the_nearest():
  with refused("vit_b17 .*: did you mean vit_b16 or .* give its weights"):
    load_backbone("vit_b17")


@pytest.mark.slow
def test_vit_weights_load_as_deit(vit_file):
  """The network is the same, the preprocessing is not."""
  deit = load_backbone("deit_ti16", vit_file, preprocess=SMALL)
  assert deit.feature_dim == 192


@pytest.mark.slow
def test_wrn_of_a_size_that_is_not_listed_loads(wrn_file):
  wrn = load_backbone("wrn_16_1", wrn_file)
  assert wrn.feature_dim == 64
  assert wrn.preprocessing.image_size == 32


def test_wrn_has_one_embedding_only(wrn_file):
  with refused("its only embedding is pooled"):
    load_backbone("wrn_16_1", wrn_file, embedding="cls")


STRANGERS = [
  ("timm/convnext_tiny", "convnext_tiny.fb_in22k", "look like convnext_tiny"),
  ("timm/dinov3_s16", "vit_small_patch16_dinov3", "look like dinov3_s16"),
  (
    "timm/clip_b16",
    "vit_base_patch16_clip_quickgelu_224.openai",
    "look like clip_b16",
  ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tag", "message"), STRANGERS)
def test_weights_of_another_architecture_are_refused_by_its_name(
  tmp_path, kind, tag, message
):
  """The shapes alone are drawn, of float16 zeros."""
  shapes = drawn.layouts()[0][f"published/{kind}/{tag}"]
  arrays = {k: np.zeros(s, np.float16) for k, s in shapes.items()}
  with refused(f"backbone vit_s16: .* does not fit: .*{message}"):
    load_backbone("vit_s16", save(tmp_path / "w.safetensors", arrays))


FOREIGN_NAMES = {
  "vit.embeddings.patch_embeddings.projection.weight": "Hugging Face",
  "vision_model.embeddings.patch_embedding.weight": "Hugging Face",
  "visual.conv1.weight": "OpenAI's CLIP or OpenCLIP",
  "conv_proj.weight": "torchvision",
  "something.else": "no network known here .*something.else",
}


@pytest.mark.parametrize(("array", "message"), FOREIGN_NAMES.items())
def test_weights_of_another_program_are_refused_by_its_name(
  tmp_path, array, message
):
  path = save(tmp_path / "w.safetensors", {array: np.zeros((2, 3, 4, 4))})
  with refused(f"backbone vit_b16: .* does not fit: .*{message}"):
    load_backbone("vit_b16", path)


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
  ({f"{GOOGLE_ATTENTION}/key/kernel": np.zeros(())}, "does not fit"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_weights_with_a_wrong_array_are_refused_in_one_line(
  tmp_path, change, message
):
  arrays = safetensors.numpy.load_file(GLYPH_WEIGHTS) | change
  changed = {k: v for k, v in arrays.items() if v is not None}
  path = save(tmp_path / "w.safetensors", changed)
  with refused(message):
    load_backbone("glyph_vit", path)


# Image size, and what the shorter side is resized to.
SIZES = {
  "vit_ti16": (224, "square"),
  "deit_b16": (224, 256),
  "dinov2_reg_g14": (224, 256),
  "siglip_b16": (224, "square"),
  "siglip_l16": (256, "square"),
  "siglip_so400m14": (384, "square"),
  "siglip2_b16": (224, "square"),
  "tipsv2_b14": (448, 448),
  "clip_b16": (224, 248),
  "clip_laion2b_b16": (224, 224),
  "clip_metaclip_b16": (224, 224),
  "dinov3_s16": (256, 256),
  "convnext_tiny": (224, 256),
  "convnext_in1k_tiny": (288, 288),
  "convnext_dinov3_tiny": (224, 224),
  "bit_r50x1": (448, "square"),
  "bit_r152x4": (480, "square"),
  "nf_resnet50": (288, 306),
  "nfnet_f0": (256, 284),
  "nfnet_f1": (320, 351),
  "nfnet_f2": (352, 382),
  "nfnet_f3": (416, 442),
  "wrn_28_10": (32, "square"),
  "vit_b14": (224, "square"),  # a size that is not listed
}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_spec_prepares_images_as_the_weights_were_trained(name, size):
  preprocessing = default_preprocessing(backbone_spec(name))
  assert (preprocessing.image_size, preprocessing.resize) == size
  is_bilinear = name.startswith(("bit", "wrn"))
  assert preprocessing.resample == ("bilinear" if is_bilinear else "bicubic")
  if name == "wrn_28_10":
    assert preprocessing.mean[0] == 0.49139968
  elif name == "tipsv2_b14":
    assert (preprocessing.mean, preprocessing.std) == ((0, 0, 0), (1, 1, 1))
  elif name.startswith("clip"):
    assert preprocessing.mean == (0.48145466, 0.4578275, 0.40821073)
    assert preprocessing.std == (0.26862954, 0.26130258, 0.27577711)
  elif name.startswith(("deit", "dino", "nf", "convnext")):
    assert preprocessing.mean == (0.485, 0.456, 0.406)
  else:
    assert preprocessing.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", backbone_names())
def test_spec_of_a_listed_name_has_the_weights_of_its_tag(name):
  spec = backbone_spec(name)
  assert spec.name == name
  if name == "wrn_28_10":
    assert spec.weights is None
  elif name == "glyph_vit":
    assert spec.weights == str(GLYPH_WEIGHTS)
  else:
    # timm keeps one file for a network with quick-GELU and without.
    repository = (spec.timm or "").replace("_quickgelu", "")
    assert spec.weights == f"hf://timm/{repository}@main/model.safetensors"


@pytest.mark.parametrize(
  ("name", "mlp"),
  [
    ("clip_b16", "quick_gelu"),
    ("clip_metaclip_b16", "quick_gelu"),
    ("clip_dfn2b_l14", "quick_gelu"),
    ("clip_dfn2b_b16", None),
    ("clip_laion2b_b16", None),
  ],
)
def test_spec_of_clip_has_quick_gelu_where_its_tag_says_so(name, mlp):
  spec = backbone_spec(name)
  assert spec.model_kwargs.get("mlp") == mlp
  assert ("quickgelu" in (spec.timm or "")) == (mlp is not None)


@pytest.mark.parametrize(
  ("name", "license"),
  [
    ("dinov3_s16", "dinov3-license"),
    ("convnext_dinov3_tiny", "dinov3-license"),
    ("clip_metaclip_b16", "cc-by-nc-4.0"),
    ("clip_dfn2b_b16", "apple-ascl"),
    ("vit_b16", None),
  ],
)
def test_spec_names_a_license_that_is_not_permissive(name, license):
  assert backbone_spec(name).license == license


UNKNOWN_NAMES = [
  *("bit_r50", "bit_r50x0", "bit_r18x1", "bit_r50x04", "xbit_r50x1"),
  *("nf_resnet18", "resnet50", "nfnet_f4", "nfnet", "vit_b0", "vit_m16"),
  *("wrn_17_4", "vit_b16\n", "", "vit-b16", "\x1b[31m"),
]


@pytest.mark.parametrize("name", UNKNOWN_NAMES)
def test_spec_of_an_unknown_name_is_refused(name):
  with refused("^backbone '.*' is unknown"):
    backbone_spec(name)
