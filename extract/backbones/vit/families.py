"""The Vision Transformer's public families: ViT, DeiT, DINOv2 and SigLIP."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import IMAGENET, Architecture
from oneshot_dp.extract.backbones.vit import weights
from oneshot_dp.extract.backbones.vit.network import (
  VisionTransformer,
  last_blocks,
)
from oneshot_dp.extract.backbones.vit.position_embedding import Resize
from oneshot_dp.extract.images.preprocess import Preprocessing

_TORCH = ("transformers safetensors", "timm safetensors")
_OF_TOKENS = ("cls", "mean", "cls_mean", "last<k>_cls")
# Of networks that have no class token: how their tokens are read.
_WITHOUT_CLS = {"gap": "mean", "map": "map"}
_CLS = ("cls", 1)


def _size(
  width: int, depth: int, mlp_dim: int, num_heads: int, **parts: Any
) -> dict[str, Any]:
  sizes = {"width": width, "depth": depth, "mlp_dim": mlp_dim}
  return sizes | {"num_heads": num_heads} | parts


_TI = _size(192, 12, 768, 3)
_S = _size(384, 12, 1536, 6)
_B = _size(768, 12, 3072, 12)
_L = _size(1024, 24, 4096, 16)
_H = _size(1280, 32, 5120, 16)
_SO400M = _size(1152, 27, 4304, 16)
_SIGLIP_G = _size(1536, 40, 6144, 16)
_DINOV2_G = _size(1536, 40, 4096, 24, mlp="swiglu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """A row of the table: what the networks of a family have in common.

  Attributes:
    sizes: by the letters in a name: fields of `VisionTransformer`.
    parts: those that every network of the family has.
    published: size and patch of public weights; any other patch works too.
    embeddings: the default first.
    reference: what its weights are shown: of a ViT, the published side and
      normalisation with Pillow's bicubic filter (vision_transformer has a
      bilinear one without antialiasing, timm crops from 248).
    resize: how its own code resizes position embeddings.
  """

  title: str
  layouts: tuple[str, ...] = _TORCH
  sizes: Mapping[str, Mapping[str, Any]]
  parts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  published: tuple[str, ...]
  embeddings: tuple[str, ...] = _OF_TOKENS
  reference: Preprocessing
  resize: Resize = "bicubic"


_IMAGENET = Preprocessing(image_size=224, resize=256, **IMAGENET)
_DEIT = Family(
  title="DeiT",
  sizes={"ti": _TI, "s": _S, "b": _B},
  published=("ti16", "s16", "b16"),
  reference=_IMAGENET,
)
_DINOV2 = Family(
  title="DINOv2",
  sizes={"s": _S, "b": _B, "l": _L, "g": _DINOV2_G},
  parts={"layer_scale": True},
  published=("s14", "b14", "l14", "g14"),
  reference=_IMAGENET,
)
FAMILIES = {
  "vit": Family(
    title="Vision Transformer",
    layouts=("vision_transformer npz", "big_vision npz", *_TORCH),
    sizes={"ti": _TI, "s": _S, "b": _B, "l": _L, "h": _H},
    # As its patch convolution does: a ViT-H/14 at 256 pixels sees 252.
    parts={"drops_border": True},
    published=("ti16", "s16", "s32", "b8", "b16", "b32", "l16", "l32", "h14"),
    embeddings=(*_OF_TOKENS, "pre_logits", *_WITHOUT_CLS),
    reference=Preprocessing(),
    resize="bilinear",
  ),
  "deit": _DEIT,
  "deit_distilled": dataclasses.replace(
    _DEIT,
    title="DeiT with a distillation token",
    parts={"tokens": (_CLS, ("dist", 1))},
  ),
  "dinov2": _DINOV2,
  "dinov2_reg": dataclasses.replace(
    _DINOV2,
    title="DINOv2 with registers",
    parts={"layer_scale": True, "tokens": (_CLS, ("registers", 4))},
    resize="bicubic_antialias",
  ),
  "siglip": Family(
    title="image tower of SigLIP or SigLIP 2",
    layouts=(*_TORCH, "big_vision npz"),
    sizes={"b": _B, "l": _L, "so400m": _SO400M, "g": _SIGLIP_G},
    # 384 pixels are not a multiple of 14, yet so400m14 is made for them.
    parts={"tokens": (), "mlp": "gelu_tanh", "drops_border": True},
    published=("b16", "b32", "l16", "so400m14", "so400m16", "g16"),
    embeddings=("map", "mean"),
    reference=Preprocessing(image_size=256),
  ),
}
# Where the first published weights were not made for the family's side.
_SIDES = {"siglip_b16": 224, "siglip_so400m14": 384}

EXAMPLES: tuple[str, ...] = tuple(
  f"{prefix}_{size}"
  for prefix, family in FAMILIES.items()
  for size in family.published
)


def find(name: str) -> Architecture | None:
  """The architecture that a name such as `vit_b16` means; None if none."""
  match = re.fullmatch(r"([a-z0-9_]+)_(ti|s|b|l|h|g|so400m)([1-9]\d*)", name)
  family = match and FAMILIES.get(match[1])
  if not match or not family or match[2] not in family.sizes:
    return None
  network = VisionTransformer(
    **family.parts, **family.sizes[match[2]], patch=int(match[3])
  )
  return architecture(name, family, network)


def architecture(
  name: str, family: Family, network: VisionTransformer
) -> Architecture:
  """A network of any size of a family, by the name that it is called."""

  def up_to(embedding: str, compute_dtype: ComputeDtype) -> VisionTransformer:
    last = last_blocks(embedding) or 0
    if last > network.depth:
      raise InputError(
        f"embedding={embedding} asks {name} for {last} blocks, which has "
        f"{network.depth}: use last{network.depth}_cls or fewer."
      )
    changes: dict[str, Any] = {"embedding": embedding}
    if embedding in _WITHOUT_CLS:
      changes = {"embedding": _WITHOUT_CLS[embedding], "tokens": ()}
    return network.clone(compute_dtype=compute_dtype, **changes)

  side = _SIDES.get(name, family.reference.image_size)
  return Architecture(
    name=name,
    summary=(
      f"{family.title}, width {network.width}, depth {network.depth}, patch "
      f"{network.patch}"
    ),
    layouts=family.layouts,
    embeddings=family.embeddings,
    reference=dataclasses.replace(family.reference, image_size=side),
    network=up_to,
    rename=functools.partial(weights.rename, name=name, resize=family.resize),
  )
