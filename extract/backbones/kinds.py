"""The kinds of backbones: what published networks of a kind have in common.

A `BackboneSpec` is a record of one backbone, as a model of timm has its `_cfg`;
here are those of kinds, whose `name` is a regular expression. A kind also
stands for the sizes that nobody published.

This module imports no numerical library, so that `--help` starts quickly.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

HALF = (0.5, 0.5, 0.5)
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneSpec:
  """What a backbone's name stands for.

  Attributes:
    name: the name on the command line; in a kind, a regular expression of
      all names of this kind.
    family: the architecture, a key of `family.FAMILIES`.
    timm: architecture and tag of the published weights in timm, such as
      "vit_tiny_patch16_224.augreg_in21k"; None if timm does not have them.
    weights: default location of the weights; None if they were never published
      as plain arrays.
    embedding: the layer that is read by default; None is the family's default.
    network_prefix: what stands for everything before the size in the name by
      which `Family.inferred_name` calls this network, if several kinds of
      weights share it ("vit_" of `deit_b16`).
    license: of the weights, where it is not a permissive one.
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
  network_prefix: str | None = None
  license: str | None = None
  model_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  image_size: int = 224
  resize: int | Literal["square"] = "square"
  keep_aspect: bool = True
  resample: Literal["bilinear", "bicubic"] = "bicubic"
  mean: tuple[float, float, float] = HALF
  std: tuple[float, float, float] = HALF
  keeps_image_size: bool = False

  @property
  def network_name(self) -> str:
    """What `Family.inferred_name` calls this network, whoever trained it."""
    if self.network_prefix is None:
      return self.name
    size = self.name.rpartition("_")[2]
    return f"{self.network_prefix}{size}"


_VIT_SIZE = "(ti|s|b|l|h|g|so400m)[1-9][0-9]?"

VIT = BackboneSpec(name=f"vit_{_VIT_SIZE}", family="vit")
DEIT = BackboneSpec(
  name=f"deit_{_VIT_SIZE}",
  family="vit",
  network_prefix="vit_",
  resize=256,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
DEIT_DISTILLED = dataclasses.replace(
  DEIT, name=f"deit_distilled_{_VIT_SIZE}", network_prefix=None
)
DINOV2 = dataclasses.replace(
  DEIT,
  name=f"dinov2_{_VIT_SIZE}",
  network_prefix=None,
  keeps_image_size=True,
)
DINOV2_REG = dataclasses.replace(DINOV2, name=f"dinov2_reg_{_VIT_SIZE}")
SIGLIP = BackboneSpec(
  name=f"siglip_{_VIT_SIZE}",
  family="vit",
  model_kwargs={"mlp": "gelu_tanh"},
  image_size=256,
)
SIGLIP2 = dataclasses.replace(
  SIGLIP, name=f"siglip2_{_VIT_SIZE}", network_prefix="siglip_"
)
# The arrays of a DINOv2 with registers; pixels are not normalized.
TIPSV2 = BackboneSpec(
  name=f"tipsv2_{_VIT_SIZE}",
  family="vit",
  network_prefix="dinov2_reg_",
  image_size=448,
  resize=448,
  mean=(0.0, 0.0, 0.0),
  std=(1.0, 1.0, 1.0),
)
# OpenAI's, with quick-GELU.
CLIP = BackboneSpec(
  name=f"clip_{_VIT_SIZE}",
  family="clip",
  model_kwargs={"mlp": "quick_gelu"},
  resize=224,
  mean=_CLIP_MEAN,
  std=_CLIP_STD,
)
CLIP_LAION2B = dataclasses.replace(
  CLIP,
  name=f"clip_laion2b_{_VIT_SIZE}",
  network_prefix="clip_",
  model_kwargs={},
)
CLIP_DFN2B = dataclasses.replace(
  CLIP_LAION2B, name=f"clip_dfn2b_{_VIT_SIZE}", license="apple-ascl"
)
CLIP_METACLIP = dataclasses.replace(
  CLIP,
  name=f"clip_metaclip_{_VIT_SIZE}",
  network_prefix="clip_",
  license="cc-by-nc-4.0",
)
DINOV3 = BackboneSpec(
  name="dinov3_(s|b|l)16",
  family="rope_vit",
  license="dinov3-license",
  image_size=256,
  resize=256,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
_CONVNEXT_SIZE = "(tiny|small|base|large|xlarge)"
CONVNEXT = BackboneSpec(
  name=f"convnext_{_CONVNEXT_SIZE}",
  family="convnext",
  resize=256,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
CONVNEXT_IN1K = dataclasses.replace(
  CONVNEXT,
  name=f"convnext_in1k_{_CONVNEXT_SIZE}",
  network_prefix="convnext_",
  image_size=288,
  resize=288,
)
CONVNEXT_DINOV3 = dataclasses.replace(
  CONVNEXT,
  name=f"convnext_dinov3_{_CONVNEXT_SIZE}",
  network_prefix="convnext_",
  license="dinov3-license",
  resize=224,
)
BIT = BackboneSpec(
  name="bit_r(50|101|152)x[1-9][0-9]?",
  family="resnet_v2",
  image_size=448,
  resample="bilinear",
)
WRN = BackboneSpec(
  name="wrn_(16|22|28|34|40)_[1-9][0-9]?",
  family="resnet_v2",
  image_size=32,
  resample="bilinear",
  # CIFAR's, which jax_privacy uses for every data set that a WRN is shown.
  mean=(0.49139968, 0.48215841, 0.44653091),
  std=(0.24703223, 0.24348513, 0.26158784),
)
NF_RESNET = BackboneSpec(
  name="nf_resnet(26|50|101)",
  family="norm_free",
  # The central 94 %, as timm evaluates the published NF-ResNet-50.
  image_size=288,
  resize=306,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
NFNET = BackboneSpec(
  name="nfnet_f[0-3]",
  family="norm_free",
  keep_aspect=False,
  mean=_IMAGENET_MEAN,
  std=_IMAGENET_STD,
)
GLYPH_VIT = BackboneSpec(
  name="glyph_vit",
  family="vit",
  weights=str(pathlib.Path(__file__).with_name("glyph_vit.safetensors")),
  embedding="pre_logits",
  model_kwargs={"mlp": "gelu_tanh", "heads": 4},
  image_size=32,
)

# The name of a size that nobody published (`vit_b14`) is looked up here. The
# glyph ViT has one size only.
KINDS = (
  VIT,
  DEIT,
  DEIT_DISTILLED,
  DINOV2,
  DINOV2_REG,
  SIGLIP,
  SIGLIP2,
  TIPSV2,
  CLIP,
  CLIP_LAION2B,
  CLIP_DFN2B,
  CLIP_METACLIP,
  DINOV3,
  CONVNEXT,
  CONVNEXT_IN1K,
  CONVNEXT_DINOV3,
  BIT,
  WRN,
  NF_RESNET,
  NFNET,
)
