"""The published backbones: their weights and the images that they expect.

Each backbone is a `BackboneSpec`, as a model of timm has its `_cfg`. To add a
published network of a known architecture, add a record to `_PUBLISHED`.

This module imports no numerical library, so that `--help` starts quickly.
"""

import dataclasses
import difflib
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from oneshot_dp.configs.errors import InputError

_HALF = (0.5, 0.5, 0.5)
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneSpec:
  """What a backbone's name stands for.

  Attributes:
    name: the name on the command line; in `_SERIES`, a regular expression of
      all names of this kind.
    family: the architecture, a key of `family.FAMILIES`.
    timm: architecture and tag of the published weights in timm, such as
      "vit_tiny_patch16_224.augreg_in21k"; None if timm does not have them.
    weights: default location of the weights; None if they were never published
      as plain arrays.
    embedding: the layer that is read by default; None is the family's default.
    model_kwargs: fields of the network that cannot be read off the weights.
    image_size, resize, keep_aspect, resample, mean, std: how images were
      prepared when the weights were trained; see `images.Preprocessing`. A
      config.json that comes with the weights takes precedence.
    keeps_image_size: whether size and crop are those of this record in any
      case. DINOv2's last stage of training was at 518 pixels, which timm's
      files say; it is evaluated, and five times as fast, at 224.
  """

  name: str
  family: str
  timm: str | None = None
  weights: str | None = None
  embedding: str | None = None
  model_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  image_size: int = 224
  resize: int | Literal["square"] = "square"
  keep_aspect: bool = True
  resample: Literal["bilinear", "bicubic"] = "bicubic"
  mean: tuple[float, float, float] = _HALF
  std: tuple[float, float, float] = _HALF
  keeps_image_size: bool = False


_VIT_SIZE = "(ti|s|b|l|h|g|so400m)[1-9][0-9]?"

# Kinds of networks. What the published sizes of a kind have in common is here,
# and the name of a size that nobody published (`vit_b14`) is looked up here.
_VIT = BackboneSpec(name=f"vit_{_VIT_SIZE}", family="vit")
_DEIT = BackboneSpec(
  name=f"deit_{_VIT_SIZE}",
  family="vit",
  resize=256,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
_DEIT_DISTILLED = dataclasses.replace(_DEIT, name=f"deit_distilled_{_VIT_SIZE}")
_DINOV2 = dataclasses.replace(
  _DEIT, name=f"dinov2_{_VIT_SIZE}", keeps_image_size=True
)
_DINOV2_REG = dataclasses.replace(_DINOV2, name=f"dinov2_reg_{_VIT_SIZE}")
_SIGLIP = BackboneSpec(
  name=f"siglip_{_VIT_SIZE}",
  family="vit",
  model_kwargs={"mlp": "gelu_tanh"},
  image_size=256,
)
_BIT = BackboneSpec(
  name="bit_r(50|101|152)x[1-9][0-9]?",
  family="resnet_v2",
  image_size=448,
  resample="bilinear",
)
_WRN = BackboneSpec(
  name="wrn_(16|22|28|34|40)_[1-9][0-9]?",
  family="resnet_v2",
  image_size=32,
  resample="bilinear",
  # CIFAR's, which jax_privacy uses for every data set that a WRN is shown.
  mean=(0.49139968, 0.48215841, 0.44653091),
  std=(0.24703223, 0.24348513, 0.26158784),
)
_NF_RESNET = BackboneSpec(
  name="nf_resnet(26|50|101)",
  family="norm_free",
  # The central 94 %, as timm evaluates the published NF-ResNet-50.
  image_size=288,
  resize=306,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
_NFNET = BackboneSpec(
  name="nfnet_f[0-3]",
  family="norm_free",
  keep_aspect=False,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
_GLYPH_VIT = BackboneSpec(
  name="glyph_vit",
  family="vit",
  weights=str(pathlib.Path(__file__).with_name("glyph_vit.safetensors")),
  embedding="pre_logits",
  model_kwargs={"mlp": "gelu_tanh", "heads": 4},
  image_size=32,
)
_SERIES = (
  _VIT,
  _DEIT,
  _DEIT_DISTILLED,
  _DINOV2,
  _DINOV2_REG,
  _SIGLIP,
  _BIT,
  _WRN,
  _NF_RESNET,
  _NFNET,
)


def _published(
  kind: BackboneSpec,
  name: str,
  timm: str,
  *,
  image_size: int | None = None,
  resize: int | None = None,
  heads: int | None = None,
) -> BackboneSpec:
  """A network of a kind whose weights timm publishes on the Hub.

  `main` may move. A cache records the SHA-256 of the file that made it,
  `--weights-sha256` insists on one, and `--weights hf://timm/TAG@COMMIT/
  model.safetensors` asks for a revision.
  """
  model_kwargs = dict(kind.model_kwargs)
  if heads is not None:
    model_kwargs["heads"] = heads
  return dataclasses.replace(
    kind,
    name=name,
    timm=timm,
    weights=f"hf://timm/{timm}@main/model.safetensors",
    model_kwargs=model_kwargs,
    image_size=image_size or kind.image_size,
    resize=resize or kind.resize,
  )


# Where there is a choice, weights that saw no labels of ImageNet-1k: they can
# be used in experiments on it.
_PUBLISHED = (
  _published(_VIT, "vit_ti16", "vit_tiny_patch16_224.augreg_in21k"),
  _published(_VIT, "vit_s16", "vit_small_patch16_224.augreg_in21k"),
  _published(_VIT, "vit_s32", "vit_small_patch32_224.augreg_in21k"),
  _published(_VIT, "vit_b8", "vit_base_patch8_224.augreg_in21k"),
  _published(_VIT, "vit_b16", "vit_base_patch16_224.augreg_in21k"),
  _published(_VIT, "vit_b32", "vit_base_patch32_224.augreg_in21k"),
  _published(_VIT, "vit_l16", "vit_large_patch16_224.augreg_in21k"),
  _published(_VIT, "vit_l32", "vit_large_patch32_224.orig_in21k"),
  _published(_VIT, "vit_h14", "vit_huge_patch14_224.orig_in21k"),
  _published(_DEIT, "deit_ti16", "deit_tiny_patch16_224.fb_in1k"),
  _published(_DEIT, "deit_s16", "deit_small_patch16_224.fb_in1k"),
  _published(_DEIT, "deit_b16", "deit_base_patch16_224.fb_in1k"),
  _published(
    _DEIT_DISTILLED,
    "deit_distilled_ti16",
    "deit_tiny_distilled_patch16_224.fb_in1k",
  ),
  _published(
    _DEIT_DISTILLED,
    "deit_distilled_s16",
    "deit_small_distilled_patch16_224.fb_in1k",
  ),
  _published(
    _DEIT_DISTILLED,
    "deit_distilled_b16",
    "deit_base_distilled_patch16_224.fb_in1k",
  ),
  _published(_DINOV2, "dinov2_s14", "vit_small_patch14_dinov2.lvd142m"),
  _published(_DINOV2, "dinov2_b14", "vit_base_patch14_dinov2.lvd142m"),
  _published(_DINOV2, "dinov2_l14", "vit_large_patch14_dinov2.lvd142m"),
  _published(_DINOV2, "dinov2_g14", "vit_giant_patch14_dinov2.lvd142m"),
  _published(
    _DINOV2_REG, "dinov2_reg_s14", "vit_small_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    _DINOV2_REG, "dinov2_reg_b14", "vit_base_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    _DINOV2_REG, "dinov2_reg_l14", "vit_large_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    _DINOV2_REG, "dinov2_reg_g14", "vit_giant_patch14_reg4_dinov2.lvd142m"
  ),
  _published(
    _SIGLIP, "siglip_b16", "vit_base_patch16_siglip_224.webli", image_size=224
  ),
  _published(_SIGLIP, "siglip_b32", "vit_base_patch32_siglip_256.v2_webli"),
  _published(_SIGLIP, "siglip_l16", "vit_large_patch16_siglip_256.webli"),
  _published(
    _SIGLIP,
    "siglip_so400m14",
    "vit_so400m_patch14_siglip_384.webli",
    image_size=384,
  ),
  _published(
    _SIGLIP, "siglip_so400m16", "vit_so400m_patch16_siglip_256.v2_webli"
  ),
  _published(
    _SIGLIP, "siglip_g16", "vit_giantopt_patch16_siglip_256.v2_webli", heads=16
  ),
  _published(_BIT, "bit_r50x1", "resnetv2_50x1_bit.goog_in21k"),
  _published(_BIT, "bit_r50x3", "resnetv2_50x3_bit.goog_in21k"),
  _published(_BIT, "bit_r101x1", "resnetv2_101x1_bit.goog_in21k"),
  _published(_BIT, "bit_r101x3", "resnetv2_101x3_bit.goog_in21k"),
  _published(_BIT, "bit_r152x2", "resnetv2_152x2_bit.goog_in21k"),
  _published(
    _BIT, "bit_r152x4", "resnetv2_152x4_bit.goog_in21k", image_size=480
  ),
  _published(_NF_RESNET, "nf_resnet50", "nf_resnet50.ra2_in1k"),
  _published(
    _NFNET, "nfnet_f0", "dm_nfnet_f0.dm_in1k", image_size=256, resize=284
  ),
  _published(
    _NFNET, "nfnet_f1", "dm_nfnet_f1.dm_in1k", image_size=320, resize=351
  ),
  _published(
    _NFNET, "nfnet_f2", "dm_nfnet_f2.dm_in1k", image_size=352, resize=382
  ),
  _published(
    _NFNET, "nfnet_f3", "dm_nfnet_f3.dm_in1k", image_size=416, resize=442
  ),
  # Published as pickles only, which are not read: give --weights.
  dataclasses.replace(_WRN, name="wrn_28_10"),
  _GLYPH_VIT,
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
  if name in _SPECS:
    return _SPECS[name]
  for kind in _SERIES:
    if re.fullmatch(kind.name, name):
      return dataclasses.replace(kind, name=name)
  nearest = difflib.get_close_matches(name.lower(), _SPECS, n=3)
  hint = ""
  if nearest:
    hint = f"did you mean {' or '.join(nearest)}? "
  raise InputError(
    f"--backbone {name[:200]!a} is unknown: {hint}`oneshot-dp extract --help`"
    " lists the names; a function of your own is FILE.py:FUNCTION."
  )
