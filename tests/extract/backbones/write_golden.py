"""Writes golden/timm_outputs.npz and golden/timm_layouts.json.xz.

    pip install torch timm      # in an environment of its own
    PYTHONPATH=. python tests/extract/backbones/write_golden.py

Embeddings of small networks of timm with drawn weights, in float64, and names
and shapes of the arrays of the published ones. It was run with timm 1.0.31 and
torch 2.15.0.
"""

import functools
import json
import lzma
import pathlib

import numpy as np
import timm
import torch
from timm.layers import LayerNorm
from timm.models.convnext import ConvNeXt
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from tests.extract.backbones.draw import draw

GOLDEN = pathlib.Path(__file__).with_name("golden")
_NORM = functools.partial(LayerNorm, eps=1e-5)


def clip(activation: str | None) -> VisionTransformer:
  return VisionTransformer(
    img_size=24,
    patch_size=8,
    embed_dim=32,
    depth=2,
    num_heads=4,
    pre_norm=True,
    norm_layer=_NORM,
    act_layer=activation,
    num_classes=12,
  )


def tipsv2() -> VisionTransformer:
  return VisionTransformer(
    img_size=24,
    patch_size=8,
    embed_dim=32,
    depth=2,
    num_heads=4,
    init_values=1.0,
    reg_tokens=1,
    no_embed_class=True,
    num_classes=0,
  )


def dinov3() -> Eva:
  return Eva(
    img_size=24,
    patch_size=8,
    dynamic_img_size=True,
    embed_dim=64,
    depth=2,
    num_heads=4,
    qkv_bias=False,
    init_values=1e-5,
    rope_type="dinov3",
    rope_temperature=100,
    rope_rotate_half=True,
    use_rot_pos_emb=True,
    use_abs_pos_emb=False,
    num_reg_tokens=4,
    use_fc_norm=False,
    norm_layer=_NORM,
    num_classes=0,
  )


def convnext() -> ConvNeXt:
  return ConvNeXt(depths=(1, 2, 1, 1), dims=(8, 16, 24, 32), num_classes=5)


# The small networks, and at which sides they embed the drawn images.
SMALL = {
  "clip": (clip(None), (24,)),
  "clip_quickgelu": (clip("quick_gelu"), (24,)),
  "tipsv2": (tipsv2(), (24,)),
  "dinov3": (dinov3(), (24, 40)),
  "convnext": (convnext(), (64, 96)),
}
# Names of backbones, and of the networks in timm whose files they are.
PUBLISHED = {
  "siglip2_b16": "vit_base_patch16_siglip_224",
  "siglip2_so400m14": "vit_so400m_patch14_siglip_224",
  "siglip2_g16": "vit_giantopt_patch16_siglip_256",
  "tipsv2_b14": "vit_base_patch14_reg1_tipsv2",
  "tipsv2_l14": "vit_large_patch14_reg1_tipsv2",
  "tipsv2_so400m14": "vit_so400m_patch14_reg1_tipsv2",
  "clip_b32": "vit_base_patch32_clip_quickgelu_224.openai",
  "clip_b16": "vit_base_patch16_clip_quickgelu_224.openai",
  "clip_l14": "vit_large_patch14_clip_quickgelu_224.openai",
  "clip_laion2b_h14": "vit_huge_patch14_clip_224.laion2b",
  "clip_dfn2b_b16": "vit_base_patch16_clip_224.dfn2b",
  "clip_metaclip_l14": "vit_large_patch14_clip_quickgelu_224.metaclip_2pt5b",
  "dinov3_s16": "vit_small_patch16_dinov3",
  "dinov3_b16": "vit_base_patch16_dinov3",
  "dinov3_l16": "vit_large_patch16_dinov3",
  "convnext_tiny": "convnext_tiny.fb_in22k",
  "convnext_small": "convnext_small.fb_in22k",
  "convnext_base": "convnext_base.fb_in22k",
  "convnext_xlarge": "convnext_xlarge.fb_in22k",
  "convnext_in1k_large": "convnext_large.fb_in1k",
  "convnext_dinov3_tiny": "convnext_tiny.dinov3_lvd1689m",
}


def shapes(model: torch.nn.Module) -> dict[str, list[int]]:
  return {name: list(t.shape) for name, t in model.state_dict().items()}


def embeddings(case: str, model: torch.nn.Module, side: int) -> dict:
  """By the name of the embedding here."""
  images = draw(f"images {side}", (2, side, side, 3)).transpose(0, 3, 1, 2)
  x = torch.tensor(images.astype(np.float64))
  with torch.no_grad():
    features = model.forward_features(x)
    if case == "convnext":
      return {"pooled": model.forward_head(features, pre_logits=True)}
    if case.startswith("clip"):
      return {"cls": features[:, 0], "projection": model.forward_head(features)}
    first_patch = model.num_prefix_tokens
    return {
      "cls": features[:, 0],
      "mean": features[:, first_patch:].mean(dim=1),
    }


def main() -> None:
  layouts = {}
  outputs = {}
  for case, (model, sides) in SMALL.items():
    drawn = {}
    for name, shape in shapes(model).items():
      drawn[name] = torch.tensor(draw(name, tuple(shape)))
    model.load_state_dict(drawn)
    model = model.double().eval()
    layouts[f"small/timm/{case}"] = shapes(model)
    for side in sides:
      for embedding, values in embeddings(case, model, side).items():
        outputs[f"timm/{case}/{side}/{embedding}"] = values.numpy()
  for name, tag in PUBLISHED.items():
    config = timm.get_pretrained_cfg(tag)
    with torch.device("meta"):
      model = timm.create_model(
        tag.partition(".")[0], num_classes=config.num_classes
      )
    layouts[f"published/timm/{name}/{tag}"] = shapes(model)
  compressed = lzma.compress(json.dumps(layouts).encode(), preset=9)
  (GOLDEN / "timm_layouts.json.xz").write_bytes(compressed)
  np.savez_compressed(GOLDEN / "timm_outputs.npz", **outputs)


if __name__ == "__main__":
  main()
