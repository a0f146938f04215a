"""Names of a Vision Transformer's parameters in public files, and ours."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from oneshot_dp.extract.backbones.backbone import Arrays

POSITIONS = "pos_embedding"
BLOCK = "Transformer/encoderblock_"
MAP = "MAPHead_0"
_HEADS = "MultiHeadDotProductAttention_0"
_QUERY, _KEY, _VALUE, _OUT = (
  f"{_HEADS}/{name}" for name in ("query", "key", "value", "out")
)


def _by_theirs(table: Mapping[str, str]) -> dict[str, list[str]]:
  """Theirs to ours, of rows from ours to theirs; names in a row have spaces."""
  rows = table.items()
  return {name: ours.split() for ours, some in rows for name in some.split()}


# Names of PyTorch libraries, without .weight or .bias: of transformers' ViT,
# DeiT and DINOv2, of its SigLIP, and of timm. Where an array holds several of
# our parameters, their names stand in one row.
_TORCH_BLOCK = re.compile(r"(?:encoder\.layers?|blocks)\.(\d+)\.(.+)")
IN_BLOCK = _by_theirs(
  {
    "LayerNorm_0": "layernorm_before layer_norm1 norm1",
    "LayerNorm_1": "layernorm_after layer_norm2 norm2",
    _QUERY: "attention.attention.query self_attn.q_proj",
    _KEY: "attention.attention.key self_attn.k_proj",
    _VALUE: "attention.attention.value self_attn.v_proj",
    f"{_QUERY} {_KEY} {_VALUE}": "attn.qkv",
    _OUT: "attention.output.dense self_attn.out_proj attn.proj",
    "MlpBlock_0/Dense_0": "intermediate.dense mlp.fc1 mlp.weights_in",
    "MlpBlock_0/Dense_1": "output.dense mlp.fc2 mlp.weights_out",
    "layer_scale_0": "layer_scale1.lambda1 ls1.gamma",
    "layer_scale_1": "layer_scale2.lambda1 ls2.gamma",
  }
)
OUTSIDE = _by_theirs(
  {
    "embedding": "embeddings.patch_embeddings.projection"
    " embeddings.patch_embedding patch_embed.proj",
    POSITIONS: "embeddings.position_embeddings embeddings.position_embedding"
    " pos_embed",
    "cls": "embeddings.cls_token cls_token",
    "dist": "embeddings.distillation_token dist_token",
    "registers": "embeddings.register_tokens reg_token",
    "Transformer/encoder_norm": "layernorm post_layernorm norm",
    # The pooler of weights from ImageNet-21k holds their pre_logits layer.
    "pre_logits": "pooler.dense pre_logits.fc",
    f"{MAP}/probe": "head.probe attn_pool.latent",
    f"{MAP}/{_QUERY}": "attn_pool.q",
    f"{MAP}/{_KEY} {MAP}/{_VALUE}": "attn_pool.kv",
    f"{MAP}/{_QUERY} {MAP}/{_KEY} {MAP}/{_VALUE}": "head.attention.in_proj",
    f"{MAP}/{_OUT}": "head.attention.out_proj attn_pool.proj",
    f"{MAP}/LayerNorm_0": "head.layernorm attn_pool.norm",
    f"{MAP}/MlpBlock_0/Dense_0": "head.mlp.fc1 attn_pool.mlp.fc1",
    f"{MAP}/MlpBlock_0/Dense_1": "head.mlp.fc2 attn_pool.mlp.fc2",
    # What no embedding needs.
    "": "embeddings.mask_token embeddings.position_ids mask_token head"
    " head_dist",
  }
)
_PATCHES = "|".join(
  re.escape(name) for name, ours in OUTSIDE.items() if ours == ["embedding"]
)


def translated(
  arrays: Mapping[str, np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
  """The arrays of a file in any public layout, by our names; views of them.

  A file is known by the name of its patch embedding. What stands before it is
  a prefix of all names of the network; what has another prefix belongs to
  heads and other towers. The heads of attention may still lie side by side in
  one axis. What no layout knows keeps its name.
  """
  for key in sorted(arrays, key=len):
    if match := re.fullmatch(r"(.*/)?embedding/kernel", key):
      yield from _from_flax(_under(arrays, match[1] or ""))
      return
    if match := re.fullmatch(rf"(.*\.)?({_PATCHES})\.weight", key):
      yield from _from_torch(_under(arrays, match[1] or ""))
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
  arrays: Mapping[str, np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
  for key, value in arrays.items():
    stem = re.sub(r"[._](weight|bias)$", "", key)
    block = _TORCH_BLOCK.fullmatch(stem)
    found = IN_BLOCK.get(block[2]) if block else OUTSIDE.get(stem)
    if found is None:
      yield key, value
    elif found == [POSITIONS]:
      yield POSITIONS, value[None] if value.ndim == 2 else value
    elif found:
      leaf, scope = _leaf(key, value), f"{BLOCK}{block[1]}/" if block else ""
      # Once a kernel is transposed its outputs are the last axis.
      if leaf == "/kernel":
        value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
      values = np.array_split(np.atleast_1d(value), len(found), axis=-1)
      for name, part in zip(found, values, strict=True):
        yield f"{scope}{name}{leaf}", part


def _leaf(key: str, value: np.ndarray) -> str:
  if key.endswith("bias"):
    return "/bias"
  if key.endswith("weight"):
    return "/scale" if value.ndim == 1 else "/kernel"
  return ""
