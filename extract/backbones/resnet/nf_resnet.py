"""NF-ResNet, by name: the pre-activation ResNet without normalisation."""

import functools

from oneshot_dp.extract.backbones.architecture import Architecture, pooled
from oneshot_dp.extract.backbones.resnet import nf_layouts
from oneshot_dp.extract.backbones.resnet.norm_free import NormFreeNet
from oneshot_dp.extract.images.preprocess import Preprocessing

EXAMPLES = ("nf_resnet50", "nf_resnet26", "nf_resnet101")


def find(name: str) -> Architecture | None:
  """The network that a name such as `nf_resnet50` means; None if none."""
  if name not in EXAMPLES:
    return None
  network = functools.partial(
    NormFreeNet,
    kind="nf_resnet",
    blocks=nf_layouts.BLOCKS[name],
    widths=(256, 512, 1024, 2048),
    root=64,
  )

  layers = name.removeprefix("nf_resnet")
  return Architecture(
    name=name,
    summary=f"NF-ResNet of {layers} layers; 2048 features",
    layouts=("safetensors of timm (nf_resnet*)",),
    embeddings=("pooled",),
    # 94 % of the shorter side, as timm tests the published NF-ResNet-50.
    reference=Preprocessing(
      image_size=288,
      resize=306,
      mean=(0.485, 0.456, 0.406),
      std=(0.229, 0.224, 0.225),
    ),
    build=pooled(name, network),
    rename=functools.partial(nf_layouts.rename, network()),
  )
