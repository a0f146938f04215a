"""Writes a backbone and a head as one checkpoint in timm's form.

DIR/model.safetensors   the backbone's tensors as they are, and the head's
DIR/config.json         what timm and transformers build the network by

Neither library has a classifier of embeddings at norm 1. With such a head,
config.json is one that they do not open by mistake, and beside it are

DIR/open_model.py            a few lines that open it with timm
DIR/modeling_oneshot_dp.py   the same for transformers (trust_remote_code)
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones import vit
from oneshot_dp.extract.backbones.backbone import Backbone, timm_tensors
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.pipeline.heads.model_card import template_environment
from oneshot_dp.pipeline.report.results import as_json

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
TIMM_CODE_FILE = "open_model.py"
TRANSFORMERS_CODE_FILE = "modeling_oneshot_dp.py"
_TEMPLATES = template_environment()
_POOLS: dict[str, dict[str, Any]] = {
  "cls": {"global_pool": "token"},
  "mean": {"global_pool": "avg", "fc_norm": False},
  "map": {"global_pool": "map"},
}
"""For each embedding of a ViT, how timm's ViT pools it for its classifier."""
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
  """Writes a backbone and a head as one checkpoint.

  Args:
    backbone: a network that computes in float32.
    head: its classifier. It is written less its largest bias, which changes no
      class.
    class_names: K names.

  Returns:
    The files by name.

  Raises:
    InputError: timm has no such network, or no classifier of such embeddings.
  """
  is_vit = isinstance(backbone.network, vit.ViT)
  config = _config(backbone, class_names, is_vit=is_vit)
  tensors = timm_tensors(backbone) | _classifier_tensors(head, is_vit=is_vit)
  # safetensors writes a buffer as it lies in memory, whatever the strides.
  contiguous = {}
  for name, tensor in tensors.items():
    contiguous[name] = np.ascontiguousarray(tensor)
  files = {WEIGHTS_FILE: safetensors.numpy.save(contiguous, {"format": "pt"})}
  if head.unit_norm:
    # Without "architecture" neither library opens it without its code, which
    # would classify embeddings of another norm.
    architecture = config.pop("architecture")
    config = {
      **_FOR_TRANSFORMERS,
      **config,
      "timm_architecture": architecture,
    }
    for name in (TIMM_CODE_FILE, TRANSFORMERS_CODE_FILE):
      template = _TEMPLATES.get_template(f"{name}.j2")
      code = template.render(classifier=_classifier_name(is_vit=is_vit))
      files[name] = code.encode()
  files[CONFIG_FILE] = as_json(config)
  return files


def _classifier_name(*, is_vit: bool) -> str:
  return "head" if is_vit else "head.fc"


def _classifier_tensors(
  head: LinearHead, *, is_vit: bool
) -> dict[str, np.ndarray]:
  """The head as timm's classifier: weight [K, d], bias [K]."""
  name = _classifier_name(is_vit=is_vit)
  weight = np.asarray(head.kernel, np.float32).T
  if not is_vit:
    weight = weight[:, :, None, None]  # timm's ResNetV2 has a 1 x 1 convolution
  bias = np.asarray(head.ranking().bias, np.float32)
  return {f"{name}.weight": weight, f"{name}.bias": bias}


def _config(
  backbone: Backbone, class_names: Sequence[str], *, is_vit: bool
) -> dict[str, Any]:
  """The config.json of a checkpoint that timm opens."""
  _check_timm_has_it(backbone, is_vit=is_vit)
  images = backbone.preprocessing
  side = images.image_size
  # A ViT has position embeddings of one image size. A ResNet takes any, and
  # pools a map of a 32nd of it.
  if is_vit:
    model_args = {"img_size": side, **_POOLS[backbone.embedding]}
    pool_size = None
    first_conv = "patch_embed.proj"
  else:
    model_args = {}
    pool_size = [side // 32, side // 32]
    first_conv = "stem.conv"
  # timm builds the network by these fields, and both libraries prepare images
  # by `pretrained_cfg`, so that they see the pixels that the head was trained
  # on.
  return {
    "architecture": backbone.timm,
    "num_classes": len(class_names),
    "num_features": backbone.feature_dim,
    "model_args": model_args,
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
      "pool_size": pool_size,
      "first_conv": first_conv,
      "classifier": _classifier_name(is_vit=is_vit),
    },
  }


def _check_timm_has_it(backbone: Backbone, *, is_vit: bool) -> None:
  """Refuses a network, or an embedding, that timm has no classifier of."""
  architecture = backbone.timm
  is_resnet = architecture is not None and architecture.startswith("resnetv2_")
  if architecture is None or not (is_vit or is_resnet):
    raise InputError(f"{backbone.name} has no timm equivalent.")
  has_classifier = True
  if isinstance(backbone.network, vit.ViT):
    # A distilled ViT has two classifiers, of two tokens.
    is_distilled = "dist_token" in dict(backbone.network.tokens)
    has_classifier = backbone.embedding in _POOLS and not is_distilled
  if not has_classifier:
    raise InputError(
      f"timm has no classifier of the embedding {backbone.embedding!r} of"
      f" {backbone.name}."
    )


def _crop(images: Preprocessing) -> dict[str, Any]:
  """Returns timm's settings by which it resizes and crops to the same pixels.

  timm resizes the shorter side to floor(side / crop_pct), and crops the middle.
  """
  side = images.image_size
  resize = images.resize
  if not isinstance(resize, int):
    return {"crop_pct": 1.0, "crop_mode": "squash"}
  # Rounding may take the quotient to a number at which timm floors to one pixel
  # less: the next smaller ones are tried until it does not.
  crop_pct = side / resize
  while math.floor(side / crop_pct) < resize:
    crop_pct = math.nextafter(crop_pct, 0)
  mode = "center" if images.keep_aspect else "squash"
  return {"crop_pct": crop_pct, "crop_mode": mode}
