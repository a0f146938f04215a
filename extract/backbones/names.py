"""The backbones by name: what each is, where its weights are, what it is shown.

Light enough for `--help`. A published network of a known family is a row here.
"""

import difflib
import pathlib
import re
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError

# Tags in timm: weights that saw no labels of ImageNet-1k where there are such,
# so that they serve for experiments on it. None: there are none but pickles.
# `main` may move: a cache says the SHA-256 of the file that it was made with,
# --weights-sha256 insists on one, and a revision is asked for by
# --weights hf://timm/TAG@COMMIT/model.safetensors.
_LISTED: dict[str, str | None] = {
  "vit_ti16": "vit_tiny_patch16_224.augreg_in21k",
  "vit_s16": "vit_small_patch16_224.augreg_in21k",
  "vit_s32": "vit_small_patch32_224.augreg_in21k",
  "vit_b8": "vit_base_patch8_224.augreg_in21k",
  "vit_b16": "vit_base_patch16_224.augreg_in21k",
  "vit_b32": "vit_base_patch32_224.augreg_in21k",
  "vit_l16": "vit_large_patch16_224.augreg_in21k",
  "vit_l32": "vit_large_patch32_224.orig_in21k",
  "vit_h14": "vit_huge_patch14_224.orig_in21k",
  "deit_ti16": "deit_tiny_patch16_224.fb_in1k",
  "deit_s16": "deit_small_patch16_224.fb_in1k",
  "deit_b16": "deit_base_patch16_224.fb_in1k",
  "deit_distilled_ti16": "deit_tiny_distilled_patch16_224.fb_in1k",
  "deit_distilled_s16": "deit_small_distilled_patch16_224.fb_in1k",
  "deit_distilled_b16": "deit_base_distilled_patch16_224.fb_in1k",
  "dinov2_s14": "vit_small_patch14_dinov2.lvd142m",
  "dinov2_b14": "vit_base_patch14_dinov2.lvd142m",
  "dinov2_l14": "vit_large_patch14_dinov2.lvd142m",
  "dinov2_g14": "vit_giant_patch14_dinov2.lvd142m",
  "dinov2_reg_s14": "vit_small_patch14_reg4_dinov2.lvd142m",
  "dinov2_reg_b14": "vit_base_patch14_reg4_dinov2.lvd142m",
  "dinov2_reg_l14": "vit_large_patch14_reg4_dinov2.lvd142m",
  "dinov2_reg_g14": "vit_giant_patch14_reg4_dinov2.lvd142m",
  "siglip_b16": "vit_base_patch16_siglip_224.webli",
  "siglip_b32": "vit_base_patch32_siglip_256.v2_webli",
  "siglip_l16": "vit_large_patch16_siglip_256.webli",
  "siglip_so400m14": "vit_so400m_patch14_siglip_384.webli",
  "siglip_so400m16": "vit_so400m_patch16_siglip_256.v2_webli",
  "siglip_g16": "vit_giantopt_patch16_siglip_256.v2_webli",
  "bit_r50x1": "resnetv2_50x1_bit.goog_in21k",
  "bit_r50x3": "resnetv2_50x3_bit.goog_in21k",
  "bit_r101x1": "resnetv2_101x1_bit.goog_in21k",
  "bit_r101x3": "resnetv2_101x3_bit.goog_in21k",
  "bit_r152x2": "resnetv2_152x2_bit.goog_in21k",
  "bit_r152x4": "resnetv2_152x4_bit.goog_in21k",
  "nf_resnet50": "nf_resnet50.ra2_in1k",
  "nfnet_f0": "dm_nfnet_f0.dm_in1k",
  "nfnet_f1": "dm_nfnet_f1.dm_in1k",
  "nfnet_f2": "dm_nfnet_f2.dm_in1k",
  "nfnet_f3": "dm_nfnet_f3.dm_in1k",
  "wrn_28_10": None,
  "glyph_vit": None,
}
_PATCHES = "(ti|s|b|l|h|g|so400m)[1-9][0-9]?"
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_CROPPED = {"image_size": 224, "resize": 256, **_IMAGENET}
# CIFAR's, by which jax_privacy normalises whatever it shows to a WRN.
_CIFAR = {
  "mean": (0.49139968, 0.48215841, 0.44653091),
  "std": (0.24703223, 0.24348513, 0.26158784),
}
_BIT = {"image_size": 448, "resample": "bilinear"}
_WRN = {"image_size": 32, "resample": "bilinear", **_CIFAR}
# 94 % of the shorter side, as timm tests the published NF-ResNet-50.
_NF_RESNET = {"image_size": 288, "resize": 306, **_IMAGENET}
_NFNET = {"keep_aspect": False, **_IMAGENET}
_GELU = {"mlp": "gelu_tanh"}
# By the first part of a name: the file that has the network, what may be the
# second part; what the published weights were made for (fields of
# `Preprocessing`), and what no file of weights says (fields of the network).
_FAMILIES: dict[str, tuple[str, str, Any, Any]] = {
  "vit_": ("vit", _PATCHES, {}, {}),
  "deit_": ("vit", _PATCHES, _CROPPED, {}),
  "deit_distilled_": ("vit", _PATCHES, _CROPPED, {}),
  "dinov2_": ("vit", _PATCHES, _CROPPED, {}),
  "dinov2_reg_": ("vit", _PATCHES, _CROPPED, {}),
  "siglip_": ("vit", _PATCHES, {"image_size": 256}, _GELU),
  "bit_r": ("resnet_v2", "(50|101|152)x[1-9][0-9]?", _BIT, {}),
  "wrn_": ("resnet_v2", "(16|22|28|34|40)_[1-9][0-9]?", _WRN, {}),
  "nf_resnet": ("norm_free", "(26|50|101)", _NF_RESNET, {}),
  "nfnet_f": ("norm_free", "[0-3]", _NFNET, {}),
  "glyph_vit": ("vit", "", {"image_size": 32}, {**_GELU, "heads": 4}),
}
# What of that is of one name.
_SHOWN: dict[str, dict[str, int]] = {
  "siglip_b16": {"image_size": 224},
  "siglip_so400m14": {"image_size": 384},
  "bit_r152x4": {"image_size": 480},
  "nfnet_f0": {"image_size": 256, "resize": 284},
  "nfnet_f1": {"image_size": 320, "resize": 351},
  "nfnet_f2": {"image_size": 352, "resize": 382},
  "nfnet_f3": {"image_size": 416, "resize": 442},
}
_UNSAID = {"siglip_g16": {"heads": 16}}
_GLYPH_VIT = pathlib.Path(__file__).with_name("glyph_vit.safetensors")


class Named(NamedTuple):
  """What a name stands for."""

  family: str  # the file that has its network
  timm: str | None  # its name and tag in timm
  reference: dict[str, Any]  # what it is shown: fields of `Preprocessing`
  unsaid: dict[str, Any]  # what no file says: fields of the network
  embedding: str | None  # the usual one, if it is not the family's
  address: str | None  # of its weights, if they are published as plain arrays


def backbone_names() -> dict[str, str | None]:
  """Every listed name and its weights in timm; families take other sizes too.

  >>> backbone_names()["vit_b16"]
  'vit_base_patch16_224.augreg_in21k'
  """
  return dict(_LISTED)


def named(name: str) -> Named:
  """What a name stands for.

  InputError: nothing is called so; the nearest names are shown.
  """
  for prefix, (family, rest, shown, unsaid) in _FAMILIES.items():
    if re.fullmatch(prefix + rest, name):
      shown = {"image_size": 224, **shown, **_SHOWN.get(name, {})}
      unsaid = {**unsaid, **_UNSAID.get(name, {})}
      timm, usual = _LISTED.get(name), None
      address = timm and f"hf://timm/{timm}@main/model.safetensors"
      if name == "glyph_vit":
        address, usual = str(_GLYPH_VIT), "pre_logits"
      return Named(family, timm, shown, unsaid, usual, address)
  near = difflib.get_close_matches(name.lower(), _LISTED, n=3)
  hint = f"did you mean {' or '.join(near)}? " if near else ""
  raise InputError(
    f"--backbone {name[:200]!a} is unknown: {hint}`oneshot-dp extract --help`"
    " lists them; a function of your own is FILE.py:FUNCTION."
  )
