"""NFNet-F0 to F3, by name.

DeepMind's own files of weights are Python pickles, which run code when they
are loaded, so they are not read; timm has published the same weights as
safetensors (dm_nfnet_f0.dm_in1k and so on).
"""

import functools
import math

from oneshot_dp.extract.backbones.architecture import Architecture, pooled
from oneshot_dp.extract.backbones.resnet import nf_layouts
from oneshot_dp.extract.backbones.resnet.norm_free import NormFreeNet
from oneshot_dp.extract.images.preprocess import Preprocessing

# Test size, and the share of each side that is kept (timm's).
_TEST = {
  "nfnet_f0": (256, 0.9),
  "nfnet_f1": (320, 0.91),
  "nfnet_f2": (352, 0.92),
  "nfnet_f3": (416, 0.94),
}

EXAMPLES = tuple(_TEST)


def find(name: str) -> Architecture | None:
  """The network that a name such as `nfnet_f0` means; None if it means none."""
  if name not in _TEST:
    return None
  side, share = _TEST[name]
  network = functools.partial(
    NormFreeNet,
    kind="nfnet",
    blocks=nf_layouts.BLOCKS[name],
    widths=(256, 512, 1536, 1536),
    root=128,
  )

  return Architecture(
    name=name,
    summary=(
      f"NFNet-{name[-2:].upper()}, {sum(nf_layouts.BLOCKS[name])} residual"
      " blocks; 3072 features"
    ),
    layouts=("safetensors of timm (dm_nfnet_*)",),
    embeddings=("pooled",),
    reference=Preprocessing(
      image_size=side,
      resize=math.floor(side / share),
      keep_aspect=False,
      mean=(0.485, 0.456, 0.406),
      std=(0.229, 0.224, 0.225),
    ),
    build=pooled(name, network),
    rename=functools.partial(nf_layouts.rename, network()),
  )
