"""Makes golden/conv_*: what timm and transformers say of these networks.

Run by hand where torch, timm and transformers are installed (timm 1.0.31,
transformers 5.23 and torch 2.13 were used), from the repository's root:

    PYTHONPATH=. python tests/extract/backbones/conv_golden.py

conv_outputs.npz: pooled embeddings of small networks with the weights of
conv_cases.py. conv_layouts.json.gz: {"tiny": {case: {"timm": shapes, layout:
{its name: timm's}}}, "published": {backbone: {layout: shapes}}}.
"""

import dataclasses
import functools
import gzip
import json
from collections.abc import Iterable, Mapping
from unittest import mock

import numpy as np
import timm
import torch
import transformers
from timm.layers import GroupNormAct, StdConv2d
from timm.models import nfnet, resnetv2

from tests.extract.backbones import conv_cases

# Published for transformers: google/bit-50.
PUBLISHED = {
  "bit_r50x1": "resnetv2_50x1_bit",
  "bit_r50x3": "resnetv2_50x3_bit",
  "bit_r101x1": "resnetv2_101x1_bit",
  "bit_r101x3": "resnetv2_101x3_bit",
  "bit_r152x2": "resnetv2_152x2_bit",
  "bit_r152x4": "resnetv2_152x4_bit",
  "nfnet_f0": "dm_nfnet_f0",
  "nfnet_f1": "dm_nfnet_f1",
  "nfnet_f2": "dm_nfnet_f2",
  "nfnet_f3": "dm_nfnet_f3",
  "nf_resnet26": "nf_resnet26",
  "nf_resnet50": "nf_resnet50",
  "nf_resnet101": "nf_resnet101",
}


def tiny_bit(
  blocks: Iterable[int], width: int, groups: int
) -> resnetv2.ResNetV2:
  return resnetv2.ResNetV2(
    layers=list(blocks),
    channels=tuple(4 * width * 2**i for i in range(4)),
    stem_chs=width,
    stem_type="fixed",
    num_classes=1,
    # As in BiT's own code; timm's default of 1e-8 differs by up to 2e-5 here.
    conv_layer=functools.partial(StdConv2d, eps=1e-10),
    norm_layer=functools.partial(GroupNormAct, num_groups=groups),
  )


def tiny_nfnet() -> nfnet.NormFreeNet:
  tiny = conv_cases.NFNET_TINY
  config = nfnet._dm_nfnet_cfg(depths=tiny["blocks"], channels=tiny["widths"])
  return nfnet.NormFreeNet(
    dataclasses.replace(config, stem_chs=tiny["root"], group_size=tiny["group"])
  )


def tiny_nf_resnet() -> nfnet.NormFreeNet:
  tiny = conv_cases.NF_RESNET_TINY
  config = nfnet._nfres_cfg(depths=tiny["blocks"], channels=tiny["widths"])
  return nfnet.NormFreeNet(dataclasses.replace(config, stem_chs=tiny["root"]))


def shapes_of(model: torch.nn.Module) -> dict[str, list[int]]:
  return {name: list(v.shape) for name, v in model.state_dict().items()}


def fill(model: torch.nn.Module, weights: Mapping[str, np.ndarray]) -> None:
  model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
  model.eval()


def pooled(model: torch.nn.Module, side: int) -> np.ndarray:
  images = torch.from_numpy(conv_cases.draw_images(side)).permute(0, 3, 1, 2)
  with torch.inference_mode():
    features = model.forward_features(images)
    return model.forward_head(features, pre_logits=True).numpy()


def npz_names(blocks: Iterable[int]) -> dict[str, str]:
  """npz name to timm name, from how timm itself reads such a file.

  Every array that it asks for is a different constant, which is then looked
  for in the model.
  """
  model = tiny_bit(blocks, width=8, groups=4)
  asked: list[str] = []

  class Constants(dict):
    def __missing__(self, name: str) -> np.ndarray:
      if name not in asked:
        asked.append(name)
      number = np.float32(asked.index(name) + 1)
      shape = (1,) * 4 if name.endswith("kernel") else (1,)
      if "root_block" in name:
        shape = (7, 7, 3, 8)
      return np.full(shape, number)

  with mock.patch.object(
    resnetv2, "_load_npz_checkpoint", return_value=Constants()
  ):
    model.load_pretrained("unused.npz")
  numbers = {}
  for name, value in model.state_dict().items():
    (number,) = value.unique().tolist()
    numbers[asked[int(number) - 1]] = name
  assert len(numbers) == len(asked) == len(model.state_dict())
  return numbers


def transformers_names(timm_model: torch.nn.Module) -> dict[str, str]:
  """transformers' name to timm's, proved by the same embeddings."""
  tiny = conv_cases.BIT_TINY
  config = transformers.BitConfig(
    embedding_size=tiny["width"],
    hidden_sizes=[4 * tiny["width"] * 2**i for i in range(4)],
    depths=list(tiny["blocks"]),
    num_groups=tiny["groups"],
    num_labels=1,
  )
  model = transformers.BitForImageClassification(config)
  names = dict(zip(model.state_dict(), timm_model.state_dict(), strict=True))
  ours = timm_model.state_dict()
  model.load_state_dict(
    {k: ours[names[k]].reshape(v.shape) for k, v in model.state_dict().items()}
  )
  model.eval()
  for side in conv_cases.SIDES:
    images = torch.from_numpy(conv_cases.draw_images(side)).permute(0, 3, 1, 2)
    with torch.inference_mode():
      output = model.bit(images).pooler_output[:, :, 0, 0].numpy()
    np.testing.assert_allclose(output, pooled(timm_model, side), atol=1e-4)
  return names


def published_layouts() -> dict[str, dict]:
  result = {}
  for ours, name in PUBLISHED.items():
    with torch.device("meta"):
      classes = 21843 if name.startswith("resnetv2") else 1000
      shapes = shapes_of(timm.create_model(name, num_classes=classes))
    result[ours] = {"timm": shapes}
    if ours.startswith("bit"):
      blocks = {"50": [3, 4, 6, 3], "101": [3, 4, 23, 3], "152": [3, 8, 36, 3]}
      depth = ours.removeprefix("bit_r").split("x")[0]
      result[ours]["npz"] = {
        npz: [shapes[name][i] for i in (2, 3, 1, 0)]
        if len(shapes[name]) == 4
        else shapes[name]
        for npz, name in npz_names(blocks[depth]).items()
      }
  with torch.device("meta"):
    config = transformers.BitConfig(num_labels=1000)
    result["bit_r50x1"]["transformers"] = shapes_of(
      transformers.BitForImageClassification(config)
    )
    result["bit_r50x1"]["transformers, no head"] = shapes_of(
      transformers.BitModel(config)
    )
  return result


def main() -> None:
  models = {
    "bit": tiny_bit(**conv_cases.BIT_TINY),
    "nfnet": tiny_nfnet(),
    "nf_resnet": tiny_nf_resnet(),
  }
  outputs, tiny = {}, {}
  for case, model in models.items():
    tiny[case] = {"timm": shapes_of(model)}
    fill(model, conv_cases.draw_weights(tiny[case]["timm"]))
    for side in conv_cases.SIDES:
      outputs[f"{case}_{side}"] = pooled(model, side)
  tiny["bit"]["npz"] = npz_names(conv_cases.BIT_TINY["blocks"])
  tiny["bit"]["transformers"] = transformers_names(models["bit"])
  np.savez_compressed(conv_cases.OUTPUTS, **outputs)
  layouts = {"tiny": tiny, "published": published_layouts()}
  text = json.dumps(layouts, separators=(",", ":"))
  conv_cases.LAYOUTS.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
  main()
