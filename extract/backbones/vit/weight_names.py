"""Names of a Vision Transformer's parameters in public files, and ours."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from oneshot_dp.extract.backbones.backbone import Arrays

POSITIONS = "pos_embedding"
BLOCK = "Transformer/encoderblock_"
MAP = "MAPHead_0"
_HEADS = "MultiHeadDotProductAttention_0"


class _Layout(NamedTuple):
  """How a library of PyTorch models calls its parameters.

  A file is known by the name of its patch embedding. What stands before it is
  a prefix of all names of the network; what has another prefix belongs to
  heads and other towers. Names are without their .weight or .bias. Where an
  array holds several of our parameters, they are separated by spaces.

  Attributes:
    block: pattern of what the names in a block begin with.
    parts: names in a block.
    others: names outside the blocks; "" for what no embedding needs.
  """

  block: str
  parts: Mapping[str, str]
  others: Mapping[str, str]


def _mlp(scope: str, first: str, second: str) -> dict[str, str]:
  return {
    first: f"{scope}MlpBlock_0/Dense_0",
    second: f"{scope}MlpBlock_0/Dense_1",
  }


def _heads(names: str, scope: str = "") -> str:
  return " ".join(f"{scope}{_HEADS}/{name}" for name in names.split())


_LAYOUTS = {
  # transformers: ViT, DeiT, DINOv2 (the last has norm1, fc1 or weights_in …).
  "embeddings.patch_embeddings.projection": _Layout(
    block=r"encoder\.layer\.(\d+)\.",
    parts={
      **dict.fromkeys(("layernorm_before", "norm1"), "LayerNorm_0"),
      **dict.fromkeys(("layernorm_after", "norm2"), "LayerNorm_1"),
      "attention.attention.query": _heads("query"),
      "attention.attention.key": _heads("key"),
      "attention.attention.value": _heads("value"),
      "attention.output.dense": _heads("out"),
      **_mlp("", "intermediate.dense", "output.dense"),
      **_mlp("", "mlp.fc1", "mlp.fc2"),
      **_mlp("", "mlp.weights_in", "mlp.weights_out"),
      "layer_scale1.lambda1": "layer_scale_0",
      "layer_scale2.lambda1": "layer_scale_1",
    },
    others={
      "embeddings.patch_embeddings.projection": "embedding",
      "embeddings.position_embeddings": POSITIONS,
      "embeddings.cls_token": "cls",
      "embeddings.distillation_token": "dist",
      "embeddings.register_tokens": "registers",
      "embeddings.mask_token": "",
      "layernorm": "Transformer/encoder_norm",
      # The pooler of weights from ImageNet-21k holds their pre_logits layer.
      "pooler.dense": "pre_logits",
    },
  ),
  # transformers: SigLIP.
  "embeddings.patch_embedding": _Layout(
    block=r"encoder\.layers\.(\d+)\.",
    parts={
      "layer_norm1": "LayerNorm_0",
      "layer_norm2": "LayerNorm_1",
      "self_attn.q_proj": _heads("query"),
      "self_attn.k_proj": _heads("key"),
      "self_attn.v_proj": _heads("value"),
      "self_attn.out_proj": _heads("out"),
      **_mlp("", "mlp.fc1", "mlp.fc2"),
    },
    others={
      "embeddings.patch_embedding": "embedding",
      "embeddings.position_embedding": POSITIONS,
      "embeddings.position_ids": "",
      "post_layernorm": "Transformer/encoder_norm",
      "head.probe": f"{MAP}/probe",
      "head.attention.in_proj": _heads("query key value", f"{MAP}/"),
      "head.attention.out_proj": _heads("out", f"{MAP}/"),
      "head.layernorm": f"{MAP}/LayerNorm_0",
      **_mlp(f"{MAP}/", "head.mlp.fc1", "head.mlp.fc2"),
    },
  ),
  "patch_embed.proj": _Layout(  # timm
    block=r"blocks\.(\d+)\.",
    parts={
      "norm1": "LayerNorm_0",
      "norm2": "LayerNorm_1",
      "attn.qkv": _heads("query key value"),
      "attn.proj": _heads("out"),
      "ls1.gamma": "layer_scale_0",
      "ls2.gamma": "layer_scale_1",
      **_mlp("", "mlp.fc1", "mlp.fc2"),
    },
    others={
      "patch_embed.proj": "embedding",
      "pos_embed": POSITIONS,
      "cls_token": "cls",
      "dist_token": "dist",
      "reg_token": "registers",
      **dict.fromkeys(("mask_token", "head", "head_dist"), ""),
      "norm": "Transformer/encoder_norm",
      "pre_logits.fc": "pre_logits",
      "attn_pool.latent": f"{MAP}/probe",
      "attn_pool.q": _heads("query", f"{MAP}/"),
      "attn_pool.kv": _heads("key value", f"{MAP}/"),
      "attn_pool.proj": _heads("out", f"{MAP}/"),
      "attn_pool.norm": f"{MAP}/LayerNorm_0",
      **_mlp(f"{MAP}/", "attn_pool.mlp.fc1", "attn_pool.mlp.fc2"),
    },
  ),
}


def translated(
  arrays: Mapping[str, np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
  """The arrays of a file in any public layout, by our names; views of them.

  The heads of attention may still lie side by side in one axis. What no layout
  knows keeps its name.
  """
  for key in sorted(arrays, key=len):
    match = re.fullmatch(r"(.*/)?embedding/kernel", key)
    if match:
      yield from _from_flax(_under(arrays, match[1] or ""))
      return
    for known, layout in _LAYOUTS.items():
      match = re.fullmatch(rf"(.*\.)?{re.escape(known)}\.weight", key)
      if match:
        yield from _from_torch(_under(arrays, match[1] or ""), layout)
        return
  yield from arrays.items()


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
  names = {key: key[len(prefix) :] for key in arrays if key.startswith(prefix)}
  return {name: arrays[key] for key, name in names.items()}


def _from_flax(
  arrays: Mapping[str, np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
  """vision_transformer and big_vision, which counted layers differently."""
  for key, value in arrays.items():
    new = re.sub(
      r"^Transformer/(posembed_input/)?pos_embedding$", POSITIONS, key
    )
    for old, ours in (
      ("LayerNorm_2", "LayerNorm_1"),
      ("MultiHeadDotProductAttention_1", _HEADS),
      ("MlpBlock_3", "MlpBlock_0"),
    ):
      new = re.sub(rf"^({BLOCK}\d+)/{old}/", rf"\1/{ours}/", new)
    stacked = re.fullmatch(r"Transformer/encoderblock/(.*)", new)
    if stacked and value.ndim:  # by nn.scan: one array for all blocks
      for i, layer in enumerate(value):
        yield f"{BLOCK}{i}/{stacked[1]}", layer
    else:
      yield new, value


def _from_torch(
  arrays: Mapping[str, np.ndarray], layout: _Layout
) -> Iterator[tuple[str, np.ndarray]]:
  for key, value in arrays.items():
    stem = re.sub(r"[._](weight|bias)$", "", key)
    block = re.match(layout.block, stem)
    if block:
      part = layout.parts.get(stem[block.end() :])
      targets = part and f"{BLOCK}{block[1]}/{part}"
      targets = targets and targets.replace(" ", f" {BLOCK}{block[1]}/")
    else:
      targets = layout.others.get(stem)
    if targets is None:
      yield key, value
    elif targets == POSITIONS:
      yield targets, value[None] if value.ndim == 2 else value
    elif targets:
      leaf, several = _leaf(key, value), targets.split()
      # Once a kernel is transposed its outputs are the last axis.
      if leaf == "/kernel":
        value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
      values = np.array_split(np.atleast_1d(value), len(several), axis=-1)
      yield from ((t + leaf, v) for t, v in zip(several, values, strict=True))


def _leaf(key: str, value: np.ndarray) -> str:
  if key.endswith("bias"):
    return "/bias"
  if key.endswith("weight"):
    return "/scale" if value.ndim == 1 else "/kernel"
  return ""
