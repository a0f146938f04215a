r"""CIFAR-10 from TFDS through a public ViT-B/16 at 224 px.

Run, for `train` and for `test`:

    oneshot-dp extract cifar10_vit_b16 --split train --out caches/cifar10-train

Not run yet: the machine at hand could not download the weights.
"""

from oneshot_dp.configs import extract_config


def get_config() -> extract_config.ExtractConfig:
  return extract_config.ExtractConfig(
    source=extract_config.TfdsSource(name="cifar10"),
    backbone=extract_config.BackboneConfig(
      name="vit_b16",
      weights="hf://timm/vit_base_patch16_224.augreg_in21k/model.safetensors",
    ),
  )
