"""Embeddings and names of the PyTorch libraries, for tests that need neither.

    python tests/extract/backbones/vit_golden.py

where PyTorch (2.13), transformers (5.23) and timm (1.0.31) are installed; those
versions wrote what is in golden/:

* vit_outputs.npz: float32 embeddings of small models with drawn weights, which
  were computed in float64;
* vit_layouts.json.xz: names and shapes of the files of those models, and of
  every published size, as these libraries save them.
"""

import json
import lzma
import math
import pathlib
import tempfile
import zlib

import numpy as np

GOLDEN = pathlib.Path(__file__).parent / "golden"
SMALL = {"width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 4, "patch": 4}
SWIGLU_DIM = 88  # what DINOv2 makes of width 32
# The side that the small weights are made for; others that they are resized
# to; and one for SigLIP, which drops the pixels that fill no patch.
SIDE, OTHER_SIDES, RAGGED_SIDE = 24, (16, 40), 26


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Float32 weights that depend on name and shape only, on any platform."""
  bits = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(
    math.prod(shape)
  )
  unit = ((bits >> np.uint64(40)).astype(np.float64) / 2**23 - 1).reshape(shape)
  if name.endswith("weight") and len(shape) == 1:
    unit = 1 + unit / 4
  elif len(shape) in (2, 4) and "pos" not in name:
    unit = unit * math.sqrt(6 / math.prod(shape[1:]))
  return unit.astype(np.float32)


def images(side: int) -> np.ndarray:
  """Normalised images [2, side, side, 3]."""
  return draw(f"images {side}", (2, side, side, 3))


def read_layouts() -> dict[str, dict[str, tuple[int, ...]]]:
  """Names and shapes of the arrays of each file."""
  with lzma.open(GOLDEN / "vit_layouts.json.xz", "rt") as file:
    return {
      key: {name: tuple(shape) for name, shape in layout.items()}
      for key, layout in json.load(file).items()
    }


# From here on PyTorch is needed.


def _of_transformers(kind: str, sizes: dict, side: int):
  import transformers as hf

  common = {
    "hidden_size": sizes["width"],
    "num_hidden_layers": sizes["depth"],
    "num_attention_heads": sizes["num_heads"],
    "image_size": side,
    "patch_size": sizes["patch"],
    "layer_norm_eps": 1e-6,
  }
  mlp = {"intermediate_size": sizes["mlp_dim"]}
  ratio = {"mlp_ratio": sizes["mlp_dim"] // sizes["width"]}
  swiglu = {"mlp_ratio": 4, "use_swiglu_ffn": True}
  tiny_text = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "vocab_size": 16,
  }
  makers = {
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**common, **mlp)),
    "vit_labels": lambda: hf.ViTForImageClassification(
      hf.ViTConfig(**common, **mlp)
    ),
    "deit": lambda: hf.DeiTModel(hf.DeiTConfig(**common, **mlp)),
    "deit_labels": lambda: hf.DeiTForImageClassificationWithTeacher(
      hf.DeiTConfig(**common, **mlp)
    ),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**common, **ratio)),
    "dinov2_swiglu": lambda: hf.Dinov2Model(
      hf.Dinov2Config(**common, **swiglu)
    ),
    "dinov2_reg": lambda: hf.Dinov2WithRegistersModel(
      hf.Dinov2WithRegistersConfig(**common, **ratio, num_register_tokens=4)
    ),
    "dinov2_reg_swiglu": lambda: hf.Dinov2WithRegistersModel(
      hf.Dinov2WithRegistersConfig(**common, **swiglu, num_register_tokens=4)
    ),
    "siglip": lambda: hf.SiglipVisionModel(
      hf.SiglipVisionConfig(**common, **mlp)
    ),
    "siglip_towers": lambda: hf.SiglipModel(
      hf.SiglipConfig(vision_config={**common, **mlp}, text_config=tiny_text)
    ),
  }
  return makers[kind]()


def _saved_shapes(model) -> dict[str, tuple[int, ...]]:
  """Names and shapes as transformers saves them, and as files have them."""
  from transformers.core_model_loading import revert_weight_conversion

  saved = revert_weight_conversion(model, model.state_dict())
  return {name: tuple(value.shape) for name, value in saved.items()}


def _drawn_by_transformers(model, shapes):
  """The model as `from_pretrained` loads it from a file of drawn weights."""
  import torch
  from safetensors.numpy import save_file

  with tempfile.TemporaryDirectory() as folder:
    arrays = {name: draw(name, shape) for name, shape in shapes.items()}
    save_file(arrays, f"{folder}/model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    loaded = type(model).from_pretrained(folder, dtype=torch.float32)
  return loaded.double().eval()


def _read(tokens: list, in_front: int) -> dict:
  """Embeddings from the normalised tokens after each block."""
  import torch

  cls, mean = tokens[-1][:, 0], tokens[-1][:, in_front:].mean(dim=1)
  if not in_front:
    return {"mean": mean}
  return {
    "cls": cls,  # the end of last2_cls, so only kept without that
    "mean": mean,
    "last2_cls": torch.cat([t[:, 0] for t in tokens[-2:]], dim=-1),
  }


def _embeddings_by_transformers(kind: str, model, side: int) -> dict:
  import inspect

  import torch

  blocks, outputs = (
    next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList)),
    [],
  )
  for block in blocks:
    block.register_forward_hook(
      lambda _, __, out: outputs.append(out[0] if type(out) is tuple else out)
    )
  resizes = "interpolate_pos_encoding" in inspect.signature(
    model.forward
  ).parameters or kind in ("vit", "deit", "siglip")
  pixels = torch.from_numpy(images(side)).double().permute(0, 3, 1, 2)
  arguments = {"interpolate_pos_encoding": True} if resizes else {}
  out = model(pixel_values=pixels, **arguments)
  siglip = kind == "siglip"
  norm = model.post_layernorm if siglip else model.layernorm
  tokens = [norm(t) for t in outputs]
  assert torch.allclose(tokens[-1], out.last_hidden_state)
  in_front = {"deit": 2, "dinov2_reg": 5, "dinov2_reg_swiglu": 5, "siglip": 0}
  result = _read(tokens, in_front.get(kind, 1))
  if kind == "siglip":
    result["map"] = out.pooler_output
  if kind == "vit":
    result["pre_logits"] = out.pooler_output
  return result


def _small_of_timm(kind: str):
  from timm.layers import SwiGLUPacked
  from timm.models.deit import VisionTransformerDistilled
  from timm.models.vision_transformer import VisionTransformer

  common = {
    "img_size": SIDE,
    "patch_size": SMALL["patch"],
    "embed_dim": SMALL["width"],
    "depth": SMALL["depth"],
    "num_heads": SMALL["num_heads"],
    "mlp_ratio": SMALL["mlp_dim"] / SMALL["width"],
    "num_classes": 10,
  }
  if kind == "deit":
    return VisionTransformerDistilled(**common)
  if kind == "siglip":
    return VisionTransformer(
      **common, class_token=False, global_pool="map", act_layer="gelu_tanh"
    )
  if kind == "dinov2_reg_swiglu":
    import torch

    common["mlp_ratio"] = 2 * SWIGLU_DIM / SMALL["width"]
    return VisionTransformer(
      **common,
      init_values=1e-5,
      reg_tokens=4,
      no_embed_class=True,
      mlp_layer=SwiGLUPacked,
      act_layer=torch.nn.SiLU,
    )
  return VisionTransformer(**common)


def _embeddings_by_timm(model) -> dict:
  import torch

  outputs = []
  for block in model.blocks:
    block.register_forward_hook(lambda _, __, out: outputs.append(out))
  pixels = torch.from_numpy(images(SIDE)).double().permute(0, 3, 1, 2)
  tokens = model.forward_features(pixels)
  in_front = model.num_prefix_tokens
  result = _read([model.norm(t) for t in outputs], in_front)
  if not in_front:
    result["map"] = model.forward_head(tokens, pre_logits=True)
  return result


# Names of ours to those of timm.
_TIMM = {
  "vit_ti16": "vit_tiny_patch16_224",
  "vit_s16": "vit_small_patch16_224",
  "vit_s32": "vit_small_patch32_224",
  "vit_b8": "vit_base_patch8_224",
  "vit_b16": "vit_base_patch16_384",
  "vit_b32": "vit_base_patch32_224",
  "vit_l16": "vit_large_patch16_224",
  "vit_l32": "vit_large_patch32_384",
  "vit_h14": "vit_huge_patch14_224",
  "deit_ti16": "deit_tiny_patch16_224",
  "deit_s16": "deit_small_patch16_224",
  "deit_b16": "deit_base_patch16_384",
  "deit_distilled_ti16": "deit_tiny_distilled_patch16_224",
  "deit_distilled_s16": "deit_small_distilled_patch16_224",
  "deit_distilled_b16": "deit_base_distilled_patch16_384",
  "dinov2_s14": "vit_small_patch14_dinov2",
  "dinov2_b14": "vit_base_patch14_dinov2",
  "dinov2_l14": "vit_large_patch14_dinov2",
  "dinov2_g14": "vit_giant_patch14_dinov2",
  "dinov2_reg_s14": "vit_small_patch14_reg4_dinov2",
  "dinov2_reg_b14": "vit_base_patch14_reg4_dinov2",
  "dinov2_reg_l14": "vit_large_patch14_reg4_dinov2",
  "dinov2_reg_g14": "vit_giant_patch14_reg4_dinov2",
  "siglip_b16": "vit_base_patch16_siglip_224",
  "siglip_b32": "vit_base_patch32_siglip_256",
  "siglip_l16": "vit_large_patch16_siglip_384",
  "siglip_so400m14": "vit_so400m_patch14_siglip_384",
  "siglip_so400m16": "vit_so400m_patch16_siglip_256",
  "siglip_g16": "vit_giantopt_patch16_siglip_256",
}
# Width, depth, MLP, heads as the published configurations have them.
_PUBLISHED = {
  "ti": (192, 12, 768, 3),
  "s": (384, 12, 1536, 6),
  "b": (768, 12, 3072, 12),
  "l": (1024, 24, 4096, 16),
  "h": (1280, 32, 5120, 16),
  "so400m": (1152, 27, 4304, 16),
  "dinov2_g": (1536, 40, 6144, 24),
  "siglip_g": (1536, 40, 6144, 16),
}
_SIDES = {
  "siglip_b16": (224, 256, 384, 512),
  "siglip_b32": (256,),
  "siglip_l16": (256, 384),
  "siglip_so400m14": (224, 384),
  "siglip_so400m16": (256,),
  "siglip_g16": (256,),
}


def _published_of_transformers(name: str):
  """Yields the side that the weights are for, the kind and the model."""
  family, size = name.rsplit("_", 1)
  letters = size.rstrip("0123456789")
  key = f"{family.split('_')[0]}_g" if letters == "g" else letters
  fields = ("width", "depth", "mlp_dim", "num_heads")
  sizes = dict(zip(fields, _PUBLISHED[key], strict=True))
  sizes["patch"] = int(size[len(letters) :])
  kinds = {
    "vit": ("vit", "vit_labels"),
    # Without distillation DeiT is published as a ViT.
    "deit": ("vit_labels",),
    "deit_distilled": ("deit_labels",),
    "siglip": ("siglip_towers",),
  }.get(family, (family + "_swiglu" * (letters == "g"),))
  sides = (518,) if "dinov2" in family else _SIDES.get(name, (224, 384))
  for kind in kinds:
    for side in sides:
      yield side, kind, _of_transformers(kind, sizes, side)


def main() -> None:
  """Writes both files."""
  import timm
  import torch

  layouts, outputs = {}, {}
  small = ("vit", "deit", "dinov2", "dinov2_swiglu", "dinov2_reg")
  for kind in (*small, "dinov2_reg_swiglu", "siglip"):
    model = _of_transformers(kind, SMALL, SIDE)
    layouts[f"small/transformers/{kind}"] = shapes = _saved_shapes(model)
    for side in (SIDE, *OTHER_SIDES, RAGGED_SIDE):
      if side != SIDE and (kind == "vit" or kind.endswith("swiglu")):
        continue  # they resize as none of ours, and as their families
      if side == RAGGED_SIDE and kind != "siglip":
        continue
      loaded = _drawn_by_transformers(model, shapes)
      with torch.no_grad():
        values = _embeddings_by_transformers(kind, loaded, side)
      for embedding, value in values.items():
        if (embedding == "cls") == (side != SIDE) or embedding == "map":
          outputs[f"transformers/{kind}/{side}/{embedding}"] = value
  for kind in ("vit", "deit", "dinov2_reg_swiglu", "siglip"):
    model = _small_of_timm(kind)
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    layouts[f"small/timm/{kind}"] = shapes
    drawn = {k: torch.from_numpy(draw(k, s)) for k, s in shapes.items()}
    model.load_state_dict(drawn)
    with torch.no_grad():
      values = _embeddings_by_timm(model.double().eval())
    for embedding in values.keys() - {"cls"}:
      outputs[f"timm/{kind}/{SIDE}/{embedding}"] = values[embedding]
  for name, other in _TIMM.items():
    with torch.device("meta"):
      state = timm.create_model(other).state_dict()
      layouts[f"published/timm/{name}/{other}"] = {
        k: tuple(v.shape) for k, v in state.items()
      }
      for side, kind, model in _published_of_transformers(name):
        key = f"published/transformers/{name}/{kind}_{side}"
        layouts[key] = _saved_shapes(model)
  GOLDEN.mkdir(exist_ok=True)
  np.savez_compressed(
    GOLDEN / "vit_outputs.npz",
    allow_pickle=False,
    **{key: value.float().numpy() for key, value in outputs.items()},
  )
  with lzma.open(GOLDEN / "vit_layouts.json.xz", "wt") as file:
    json.dump(layouts, file)


if __name__ == "__main__":
  main()
