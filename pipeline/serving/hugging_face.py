"""A head and its backbone as a model of transformers, without transformers."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np
import safetensors.numpy
from PIL import Image

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.backbones.registry import (
  RANDOM_PATCHES,
  find_architecture,
)
from oneshot_dp.extract.backbones.resnet import bit_layouts
from oneshot_dp.extract.backbones.resnet.bit_resnet import BitResNet
from oneshot_dp.extract.backbones.vit.network import VisionTransformer
from oneshot_dp.extract.backbones.vit.to_transformers import to_transformers
from oneshot_dp.extract.images.preprocess import PILLOW_FILTER, Preprocessing
from oneshot_dp.extract.storage.durable_files import json_bytes
from oneshot_dp.linear_dp.head import LinearHead

CODE_FILE = "modeling_oneshot_dp.py"
_CODE = '''"""A head of embeddings{of}; load with trust_remote_code=True."""

import torch
from transformers import {base}


class Head(torch.nn.Linear):
  def forward(self, x):
    if hasattr(self, "pre_logits"):
      x = torch.tanh(self.pre_logits(x))
    start, stop = self.at_unit_norm
    if stop:
      norm = x[..., start:stop].norm(dim=-1, keepdim=True)
      x = x / norm.clamp_min(1e-30)
    return super().forward(x)


class OneShotModel({base}):
  def __init__(self, config):
    super().__init__(config)
    old = {classifier}
    head = Head(old.in_features, old.out_features)
    head.at_unit_norm = tuple(config.oneshot_unit_norm)
    if config.oneshot_pre_logits:
      head.pre_logits = torch.nn.Linear(old.in_features, old.in_features)
    {classifier} = head
'''


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Model:
  """What transformers calls it, and where the embedding lies in its features.

  The classifier reads so many `features`, the embedding from `start` on;
  `pre_logits` is a layer between.
  """

  base: str
  config: dict[str, Any]
  weights: Mapping[str, np.ndarray]
  features: int
  start: int = 0
  classifier: str = "classifier"
  pre_logits: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def write_model(
  directory: Path, backbone: Backbone, head: LinearHead, names: tuple[str, ...]
) -> bool:
  """Writes config, preprocessor, weights, and code where the head needs some.

  The head is folded in as it is, less the largest bias. transformers has no
  classifier of embeddings at norm 1, nor one with a layer before it: those
  come with a few lines of code, and True is returned. InputError: transformers
  has no such model; nothing is written.
  """
  model, images = _model(backbone), _preprocessor(backbone.preprocessing)
  dim, k = head.kernel.shape
  weight = np.zeros((k, model.features), np.float32)
  weight[:, model.start : model.start + dim] = np.asarray(head.kernel).T
  bias = np.asarray(head.bias)
  tensors = {
    **model.weights,
    f"{model.classifier}.weight": weight,
    f"{model.classifier}.bias": bias - bias.max(),
    **{f"{model.classifier}.{n}": v for n, v in model.pre_logits.items()},
  }
  config = model.config | {
    "architectures": [model.base],
    "id2label": {str(i): name for i, name in enumerate(names)},
    "label2id": {name: i for i, name in enumerate(names)},
  }
  has_code = head.unit_norm or bool(model.pre_logits)
  if has_code:
    end = model.start + dim if head.unit_norm else 0
    config |= {
      "architectures": ["OneShotModel"],
      "auto_map": {
        "AutoModelForImageClassification": "modeling_oneshot_dp.OneShotModel"
      },
      "oneshot_unit_norm": [model.start, end],
      "oneshot_pre_logits": bool(model.pre_logits),
    }
    place = model.classifier.replace(".1", "[1]")
    code = _CODE.format(
      base=model.base,
      classifier=f"self.{place}",
      of=" at norm 1" if head.unit_norm else " through a layer more",
    )
    (directory / CODE_FILE).write_text(code, "utf-8")
  (directory / "config.json").write_bytes(json_bytes(config))
  (directory / "preprocessor_config.json").write_bytes(json_bytes(images))
  whole = {n: np.ascontiguousarray(v, np.float32) for n, v in tensors.items()}
  content = safetensors.numpy.save(whole, metadata={"format": "pt"})
  (directory / "model.safetensors").write_bytes(content)
  return has_code


def _model(backbone: Backbone) -> _Model:
  module = None
  if backbone.code_sha256 is None and backbone.name != RANDOM_PATCHES:
    architecture = find_architecture(backbone.name)
    module = architecture.build(backbone.embedding, "float32")
  params: dict[str, Any] = flax.traverse_util.flatten_dict(
    backbone.params, sep="/"
  )
  model = None
  if isinstance(module, BitResNet):
    model = _bit(module, params)
  if isinstance(module, VisionTransformer):
    model = _vit(backbone, module, params)
  if model is None:
    raise InputError(
      "transformers has no model that classifies by the embedding"
      f" {backbone.embedding!r} of {backbone.name}."
    )
  return model


def _bit(module: BitResNet, params: Mapping[str, np.ndarray]) -> _Model:
  sizes = [4 * module.width * 2**stage for stage in range(4)]
  config = {
    "model_type": "bit",
    "embedding_size": module.width,
    "hidden_sizes": sizes,
    "depths": list(module.blocks),
    "num_groups": module.groups,
    "layer_type": "preactivation",
  }
  return _Model(
    base="BitForImageClassification",
    config=config,
    weights=bit_layouts.to_transformers(params),
    features=sizes[-1],
    classifier="classifier.1",
  )


_EMBEDDINGS = {
  "vit": ("cls", "pre_logits"),
  "dinov2": ("cls", "mean", "cls_mean"),
  "siglip": ("mean",),
}


def _vit(
  backbone: Backbone, module: VisionTransformer, params: dict[str, np.ndarray]
) -> _Model | None:
  family = backbone.name.rpartition("_")[0]
  width, embedding = module.width, backbone.embedding
  style = {"dinov2_reg": "dinov2"}.get(family, family)
  style = style if style in _EMBEDDINGS else "vit"
  if embedding not in _EMBEDDINGS[style]:
    return None
  config: dict[str, Any] = {
    "hidden_size": width,
    "num_hidden_layers": module.depth,
    "num_attention_heads": module.num_heads,
    "patch_size": module.patch,
    "image_size": backbone.preprocessing.image_size,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh" if module.mlp == "gelu_tanh" else "gelu",
  }
  pre_logits = {}
  for name in [key for key in params if key.startswith("pre_logits/")]:
    theirs = "weight" if name.endswith("kernel") else "bias"
    pre_logits[f"pre_logits.{theirs}"] = params.pop(name).T
  in_front = dict(module.tokens)
  with_position = len(in_front.keys() & {"cls", "dist"})
  swiglu = "_swiglu" if module.mlp == "swiglu" else ""
  weights = to_transformers(params, style + swiglu, with_position)
  if style == "siglip":
    tower = config | {
      "model_type": "siglip_vision_model",
      "intermediate_size": module.mlp_dim,
      "vision_use_head": False,
    }
    return _Model(
      base="SiglipForImageClassification",
      config={"model_type": "siglip", "vision_config": tower},
      weights={f"vision_model.{n}": v for n, v in weights.items()},
      features=width,
    )
  kind, base = "vit", "ViTForImageClassification"
  features = width
  if style == "dinov2":
    kind, base = "dinov2", "Dinov2ForImageClassification"
    features = 2 * width
    config |= {
      "mlp_ratio": 4 if swiglu else module.mlp_dim // width,
      "use_swiglu_ffn": bool(swiglu),
    }
    weights["embeddings.mask_token"] = np.zeros((1, width), np.float32)
    if registers := in_front.get("registers"):
      kind = "dinov2_with_registers"
      base = "Dinov2WithRegistersForImageClassification"
      config["num_register_tokens"] = registers
  else:
    config["intermediate_size"] = module.mlp_dim
    if "dist" in in_front:
      kind, base = "deit", "DeiTForImageClassification"
  return _Model(
    base=base,
    config={"model_type": kind} | config,
    weights={f"{kind}.{n}": v for n, v in weights.items()},
    features=features,
    start=width if embedding == "mean" else 0,
    pre_logits=pre_logits,
  )


def _preprocessor(images: Preprocessing) -> dict[str, Any]:
  """transformers' words for it; Pillow's filters have the same numbers."""
  if not images.antialias:
    raise InputError("transformers has no resizing without antialiasing.")
  side = {"height": images.image_size, "width": images.image_size}
  config = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": side,
    "resample": int(Image.Resampling(PILLOW_FILTER[images.resample])),
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": list(images.mean),
    "image_std": list(images.std),
    "do_convert_rgb": True,
  }
  if isinstance(images.resize, int):
    small = {"height": images.resize, "width": images.resize}
    config |= {
      "image_processor_type": "BitImageProcessor",
      "size": {"shortest_edge": images.resize} if images.keep_aspect else small,
      "do_center_crop": True,
      "crop_size": side,
    }
  return config
