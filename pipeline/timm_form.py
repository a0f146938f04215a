"""A backbone and a head as one checkpoint in timm's form.

DIR/model.safetensors   the backbone's tensors as they are, and the head's
DIR/config.json         what timm and transformers build the network by

Neither has a classifier of embeddings at norm 1. With such a head config.json
is one that they do not open by mistake, and beside it are

DIR/open_model.py            a few lines that open it with timm
DIR/modeling_oneshot_dp.py   the same for transformers (trust_remote_code)
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Backbone, timm_tensors
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.pipeline.heads.receipt import filled_in
from oneshot_dp.pipeline.report.results import as_json

WEIGHTS_FILE = "model.safetensors"
CODE_FILE = "open_model.py"
_POOLS: dict[str, dict[str, Any]] = {
  "cls": {"global_pool": "token"},
  "mean": {"global_pool": "avg", "fc_norm": False},
  "map": {"global_pool": "map"},
}
"""What timm calls the embeddings that it has a classifier of."""
_FOR_TRANSFORMERS = {
  "model_type": "oneshot_dp",
  "auto_map": {
    "AutoConfig": "modeling_oneshot_dp.OneShotConfig",
    "AutoModelForImageClassification": "modeling_oneshot_dp.OneShotModel",
  },
  "image_processor_type": "TimmWrapperImageProcessor",
}


def timm_files(
  backbone: Backbone, head: LinearHead, class_names: Sequence[str]
) -> dict[str, bytes]:
  """The files by name, of a backbone that computes in float32.

  The head is there less its largest bias, which changes no class. InputError:
  timm has no such network, or no classifier of such embeddings.
  """
  config = _config(backbone, class_names)
  classifier = config["pretrained_cfg"]["classifier"]
  weight = np.asarray(head.kernel, np.float32).T
  if classifier != "head":  # a convolution of 1 x 1
    weight = weight[:, :, None, None]
  tensors = timm_tensors(backbone) | {
    f"{classifier}.weight": weight,
    f"{classifier}.bias": np.asarray(head.ranking().bias, np.float32),
  }
  # It writes the buffer as it lies in memory, whatever the strides.
  plain = {name: np.ascontiguousarray(each) for name, each in tensors.items()}
  files = {WEIGHTS_FILE: safetensors.numpy.save(plain, {"format": "pt"})}
  if head.unit_norm:
    config["timm_architecture"] = config.pop("architecture")
    config = _FOR_TRANSFORMERS | config
    for name in CODE_FILE, "modeling_oneshot_dp.py":
      files[name] = filled_in(name, classifier=classifier).encode()
  return files | {"config.json": as_json(config)}


def _config(backbone: Backbone, class_names: Sequence[str]) -> dict[str, Any]:
  images = backbone.preprocessing
  is_vit = type(backbone.network).__name__ == "ViT"
  if backbone.timm is None or not (
    is_vit or backbone.timm.startswith("resnetv2_")
  ):
    raise InputError(f"timm's form is not written of {backbone.name}.")
  tokens = dict(getattr(backbone.network, "tokens", ()))
  pool = _POOLS.get(backbone.embedding) if is_vit else {}
  if pool is None or "dist_token" in tokens:
    raise InputError(
      f"timm has no one classifier of the embedding {backbone.embedding} of"
      f" {backbone.name}."
    )
  side = images.image_size
  return {
    "architecture": backbone.timm,
    "num_classes": len(class_names),
    "num_features": backbone.feature_dim,
    "model_args": ({"img_size": side} if is_vit else {}) | pool,
    "label_names": list(class_names),
    "pretrained_cfg": {
      "custom_load": False,
      "input_size": [3, side, side],
      "fixed_input_size": is_vit,
      "interpolation": images.resample,
      **_crop(images),
      "mean": list(images.mean),
      "std": list(images.std),
      "num_classes": len(class_names),
      "pool_size": None if is_vit else [side // 32, side // 32],
      "first_conv": "patch_embed.proj" if is_vit else "stem.conv",
      "classifier": "head" if is_vit else "head.fc",
    },
  }


def _crop(images: Preprocessing) -> dict[str, Any]:
  """timm resizes to floor(side / crop_pct), and crops the middle of it."""
  side, resize = images.image_size, images.resize
  if not isinstance(resize, int):
    return {"crop_pct": 1.0, "crop_mode": "squash"}
  share = side / resize
  while math.floor(side / share) < resize:
    share = math.nextafter(share, 0)
  mode = "center" if images.keep_aspect else "squash"
  return {"crop_pct": share, "crop_mode": mode}
