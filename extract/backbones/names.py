"""The published backbones by name.

To add a published network of a known kind, add a record to `_PUBLISHED`.
"""

import dataclasses
import difflib
import re

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.kinds import (
  BIT,
  CLIP,
  CLIP_DFN2B,
  CLIP_LAION2B,
  CLIP_METACLIP,
  CONVNEXT,
  CONVNEXT_DINOV3,
  CONVNEXT_IN1K,
  DEIT,
  DEIT_DISTILLED,
  DINOV2,
  DINOV2_REG,
  DINOV3,
  GLYPH_VIT,
  HALF,
  KINDS,
  NF_RESNET,
  NFNET,
  SIGLIP,
  SIGLIP2,
  TIPSV2,
  VIT,
  WRN,
  BackboneSpec,
)


def _published(
  kind: BackboneSpec,
  name: str,
  timm: str,
  *,
  image_size: int | None = None,
  resize: int | None = None,
  heads: int | None = None,
  mean: tuple[float, float, float] | None = None,
  std: tuple[float, float, float] | None = None,
  mlp: str | None = None,
) -> BackboneSpec:
  """A network of a kind whose weights timm publishes on the Hub.

  `main` may move. A cache records the SHA-256 of the file that made it,
  `--weights-sha256` insists on one, and `--weights hf://timm/TAG@COMMIT/
  model.safetensors` asks for a revision.
  """
  model_kwargs = dict(kind.model_kwargs)
  if heads is not None:
    model_kwargs["heads"] = heads
  if mlp is not None:
    model_kwargs["mlp"] = mlp
  # timm calls a network with quick-GELU by a name of its own; the file of its
  # weights is that of the network without.
  repository = timm.replace("_quickgelu", "")
  return dataclasses.replace(
    kind,
    name=name,
    timm=timm,
    weights=f"hf://timm/{repository}@main/model.safetensors",
    model_kwargs=model_kwargs,
    image_size=image_size or kind.image_size,
    resize=resize or kind.resize,
    mean=mean or kind.mean,
    std=std or kind.std,
  )


# Where there is a choice, weights that saw no labels of ImageNet-1k: they can
# be used in experiments on it.
_PUBLISHED = (
  _published(VIT, "vit_ti16", "vit_tiny_patch16_224.augreg_in21k"),
  _published(VIT, "vit_s16", "vit_small_patch16_224.augreg_in21k"),
  _published(VIT, "vit_s32", "vit_small_patch32_224.augreg_in21k"),
  _published(VIT, "vit_b8", "vit_base_patch8_224.augreg_in21k"),
  _published(VIT, "vit_b16", "vit_base_patch16_224.augreg_in21k"),
  _published(VIT, "vit_b32", "vit_base_patch32_224.augreg_in21k"),
  _published(VIT, "vit_l16", "vit_large_patch16_224.augreg_in21k"),
  _published(VIT, "vit_l32", "vit_large_patch32_224.orig_in21k"),
  _published(VIT, "vit_h14", "vit_huge_patch14_224.orig_in21k"),
  _published(DEIT, "deit_ti16", "deit_tiny_patch16_224.fb_in1k"),
  _published(DEIT, "deit_s16", "deit_small_patch16_224.fb_in1k"),
  _published(DEIT, "deit_b16", "deit_base_patch16_224.fb_in1k"),
  _published(
    DEIT_DISTILLED,
    "deit_distilled_ti16",
    "deit_tiny_distilled_patch16_224.fb_in1k",
  ),
  _published(
    DEIT_DISTILLED,
    "deit_distilled_s16",
    "deit_small_distilled_patch16_224.fb_in1k",
  ),
  _published(
    DEIT_DISTILLED,
    "deit_distilled_b16",
    "deit_base_distilled_patch16_224.fb_in1k",
  ),
  _published(DINOV2, "dinov2_s14", "vit_small_patch14_dinov2.lvd142m"),
  _published(DINOV2, "dinov2_b14", "vit_base_patch14_dinov2.lvd142m"),
  _published(DINOV2, "dinov2_l14", "vit_large_patch14_dinov2.lvd142m"),
  _published(DINOV2, "dinov2_g14", "vit_giant_patch14_dinov2.lvd142m"),
  _published(
    DINOV2_REG, "dinov2_reg_s14", "vit_small_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    DINOV2_REG, "dinov2_reg_b14", "vit_base_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    DINOV2_REG, "dinov2_reg_l14", "vit_large_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    DINOV2_REG, "dinov2_reg_g14", "vit_giant_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    SIGLIP, "siglip_b16", "vit_base_patch16_siglip_224.webli", image_size=224
  ),
  _published(SIGLIP, "siglip_b32", "vit_base_patch32_siglip_256.v2_webli"),
  _published(SIGLIP, "siglip_l16", "vit_large_patch16_siglip_256.webli"),
  _published(
    SIGLIP,
    "siglip_so400m14",
    "vit_so400m_patch14_siglip_384.webli",
    image_size=384,
  ),
  _published(
    SIGLIP, "siglip_so400m16", "vit_so400m_patch16_siglip_256.v2_webli"
  ),
  _published(
    SIGLIP, "siglip_g16", "vit_giantopt_patch16_siglip_256.v2_webli", heads=16
  ),
  _published(
    SIGLIP2,
    "siglip2_b16",
    "vit_base_patch16_siglip_224.v2_webli",
    image_size=224,
  ),
  _published(SIGLIP2, "siglip2_b32", "vit_base_patch32_siglip_256.v2_webli"),
  _published(SIGLIP2, "siglip2_l16", "vit_large_patch16_siglip_256.v2_webli"),
  _published(
    SIGLIP2,
    "siglip2_so400m14",
    "vit_so400m_patch14_siglip_224.v2_webli",
    image_size=224,
  ),
  _published(
    SIGLIP2, "siglip2_so400m16", "vit_so400m_patch16_siglip_256.v2_webli"
  ),
  _published(
    SIGLIP2,
    "siglip2_g16",
    "vit_giantopt_patch16_siglip_256.v2_webli",
    heads=16,
  ),
  _published(TIPSV2, "tipsv2_b14", "vit_base_patch14_reg1_tipsv2.webli"),
  _published(TIPSV2, "tipsv2_l14", "vit_large_patch14_reg1_tipsv2.webli"),
  _published(TIPSV2, "tipsv2_so400m14", "vit_so400m_patch14_reg1_tipsv2.webli"),
  _published(
    CLIP,
    "clip_b32",
    "vit_base_patch32_clip_quickgelu_224.openai",
    resize=248,
  ),
  _published(
    CLIP,
    "clip_b16",
    "vit_base_patch16_clip_quickgelu_224.openai",
    resize=248,
  ),
  _published(CLIP, "clip_l14", "vit_large_patch14_clip_quickgelu_224.openai"),
  _published(
    CLIP_LAION2B,
    "clip_laion2b_b32",
    "vit_base_patch32_clip_224.laion2b",
    resize=248,
  ),
  _published(
    CLIP_LAION2B, "clip_laion2b_b16", "vit_base_patch16_clip_224.laion2b"
  ),
  _published(
    CLIP_LAION2B,
    "clip_laion2b_l14",
    "vit_large_patch14_clip_224.laion2b",
    mean=HALF,
    std=HALF,
  ),
  _published(
    CLIP_LAION2B, "clip_laion2b_h14", "vit_huge_patch14_clip_224.laion2b"
  ),
  _published(CLIP_DFN2B, "clip_dfn2b_b16", "vit_base_patch16_clip_224.dfn2b"),
  _published(
    CLIP_DFN2B,
    "clip_dfn2b_l14",
    "vit_large_patch14_clip_quickgelu_224.dfn2b",
    mlp="quick_gelu",
  ),
  _published(
    CLIP_METACLIP,
    "clip_metaclip_b32",
    "vit_base_patch32_clip_quickgelu_224.metaclip_2pt5b",
  ),
  _published(
    CLIP_METACLIP,
    "clip_metaclip_b16",
    "vit_base_patch16_clip_quickgelu_224.metaclip_2pt5b",
  ),
  _published(
    CLIP_METACLIP,
    "clip_metaclip_l14",
    "vit_large_patch14_clip_quickgelu_224.metaclip_2pt5b",
  ),
  _published(DINOV3, "dinov3_s16", "vit_small_patch16_dinov3.lvd1689m"),
  _published(DINOV3, "dinov3_b16", "vit_base_patch16_dinov3.lvd1689m"),
  _published(DINOV3, "dinov3_l16", "vit_large_patch16_dinov3.lvd1689m"),
  _published(CONVNEXT, "convnext_tiny", "convnext_tiny.fb_in22k"),
  _published(CONVNEXT, "convnext_small", "convnext_small.fb_in22k"),
  _published(CONVNEXT, "convnext_base", "convnext_base.fb_in22k"),
  _published(CONVNEXT, "convnext_large", "convnext_large.fb_in22k"),
  _published(CONVNEXT, "convnext_xlarge", "convnext_xlarge.fb_in22k"),
  _published(CONVNEXT_IN1K, "convnext_in1k_tiny", "convnext_tiny.fb_in1k"),
  _published(CONVNEXT_IN1K, "convnext_in1k_small", "convnext_small.fb_in1k"),
  _published(CONVNEXT_IN1K, "convnext_in1k_base", "convnext_base.fb_in1k"),
  _published(CONVNEXT_IN1K, "convnext_in1k_large", "convnext_large.fb_in1k"),
  _published(
    CONVNEXT_DINOV3, "convnext_dinov3_tiny", "convnext_tiny.dinov3_lvd1689m"
  ),
  _published(
    CONVNEXT_DINOV3, "convnext_dinov3_small", "convnext_small.dinov3_lvd1689m"
  ),
  _published(
    CONVNEXT_DINOV3, "convnext_dinov3_base", "convnext_base.dinov3_lvd1689m"
  ),
  _published(
    CONVNEXT_DINOV3, "convnext_dinov3_large", "convnext_large.dinov3_lvd1689m"
  ),
  _published(BIT, "bit_r50x1", "resnetv2_50x1_bit.goog_in21k"),
  _published(BIT, "bit_r50x3", "resnetv2_50x3_bit.goog_in21k"),
  _published(BIT, "bit_r101x1", "resnetv2_101x1_bit.goog_in21k"),
  _published(BIT, "bit_r101x3", "resnetv2_101x3_bit.goog_in21k"),
  _published(BIT, "bit_r152x2", "resnetv2_152x2_bit.goog_in21k"),
  _published(
    BIT, "bit_r152x4", "resnetv2_152x4_bit.goog_in21k", image_size=480
  ),
  _published(NF_RESNET, "nf_resnet50", "nf_resnet50.ra2_in1k"),
  _published(
    NFNET, "nfnet_f0", "dm_nfnet_f0.dm_in1k", image_size=256, resize=284
  ),
  _published(
    NFNET, "nfnet_f1", "dm_nfnet_f1.dm_in1k", image_size=320, resize=351
  ),
  _published(
    NFNET, "nfnet_f2", "dm_nfnet_f2.dm_in1k", image_size=352, resize=382
  ),
  _published(
    NFNET, "nfnet_f3", "dm_nfnet_f3.dm_in1k", image_size=416, resize=442
  ),
  # Published as pickles only, which are not read: give --weights.
  dataclasses.replace(WRN, name="wrn_28_10"),
  GLYPH_VIT,
)
_SPECS = {spec.name: spec for spec in _PUBLISHED}


def backbone_names() -> dict[str, str | None]:
  """Returns every listed name with its weights' name in timm.

  Other sizes of the same kinds (`vit_b14`, `wrn_16_4`) can be loaded, too.

  >>> backbone_names()["vit_b16"]
  'vit_base_patch16_224.augreg_in21k'
  """
  return {name: spec.timm for name, spec in _SPECS.items()}


def backbone_spec(name: str) -> BackboneSpec:
  """Returns what a backbone's name stands for.

  Args:
    name: a listed name, or one of another size of the same kind.

  Raises:
    InputError: there is no such backbone; the message has the nearest names.

  >>> backbone_spec("siglip_b16").image_size
  224
  """
  # A listed name has published weights. A name that only follows a kind's
  # pattern is a network of that size, for weights of one's own.
  if name in _SPECS:
    return _SPECS[name]
  for kind in KINDS:
    if re.fullmatch(kind.name, name):
      return dataclasses.replace(kind, name=name)
  nearest = nearest_names(name)
  hint = ""
  if nearest:
    hint = f"did you mean {' or '.join(nearest)}? "
  raise InputError(
    f"backbone {name[:200]!a} is unknown: {hint}`oneshot-dp extract --help`"
    " lists the names; a function of your own is FILE.py:FUNCTION."
  )


def names_of_timm(timm: str) -> list[str]:
  """Returns the listed names of weights that timm publishes under a name.

  Args:
    timm: architecture and tag; whether the former says quick-GELU or not does
      not matter, as timm's own files do not agree on it.

  >>> names_of_timm("vit_base_patch16_clip_224.openai")
  ['clip_b16']
  """
  wanted = timm.replace("_quickgelu", "")
  names: list[str] = []
  for spec in _SPECS.values():
    if spec.timm is not None and spec.timm.replace("_quickgelu", "") == wanted:
      names.append(spec.name)
  return names


def names_of_same_arrays(
  spec: BackboneSpec, *, images_are_known: bool
) -> list[str]:
  """Returns listed names of weights that cannot be told from those of another.

  Their arrays have the same shapes, but embeddings are computed otherwise.

  Args:
    spec: of the backbone.
    images_are_known: whether something but the name says how images were
      normalized; names that differ in that alone are then left out.

  >>> names_of_same_arrays(backbone_spec("vit_s16"), images_are_known=False)
  ['deit_s16']
  """
  names: list[str] = []
  for other in _SPECS.values():
    if other.network_name != spec.network_name:
      continue
    is_other = other.model_kwargs != spec.model_kwargs
    if not images_are_known:
      normalization = (other.mean, other.std)
      is_other = is_other or normalization != (spec.mean, spec.std)
    if is_other:
      names.append(other.name)
  return names


def nearest_names(name: str) -> list[str]:
  """Returns the listed names that a name may have been meant for.

  >>> nearest_names("vitb16")
  ['vit_b16', 'vit_s16', 'vit_l16']
  """
  return difflib.get_close_matches(name.lower(), _SPECS, n=3)
