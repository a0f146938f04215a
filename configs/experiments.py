"""Experiments by name, as data: `oneshot-dp extract NAME --out CACHE`.

    imagenet_*   the paper's five: the shorter side resized to 384, the central
                 256 x 256 cropped; `--views 16` is its augmented variant.
                 Mehta et al. (TMLR 2023), appendix D
    cifar*       TFDS downloads them
    digits       the demo's: 1,797 digits of 8 x 8 pixels that come along

Of these only `digits` was run: ImageNet and its weights were not at hand. The
weights were trained on ImageNet-21k, which contains ImageNet-1k's own
photographs: the runs repeat the paper's, but no epsilon covers what the
backbone has seen of them. The paper's ResNet-50x4 was never published: give
--weights. ViT-H/14 does not see the last 4 rows and columns of 256 pixels, as
in the public code.
"""

import difflib
import pathlib
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  ExtractConfig,
  PreprocessConfig,
  SourceSettings,
)


def _job(place: str, backbone: str, **more: Any) -> ExtractConfig:
  source = SourceSettings(location=(place,))
  return ExtractConfig(source=source, backbone=backbone, **more)


_DIGITS = str(pathlib.Path(__file__).with_name("digits.npz"))
_CROP = PreprocessConfig(image_size=256, resize=384)
_PAPER: dict[str, Any] = {"compute_dtype": "bfloat16", "preprocess": _CROP}
EXPERIMENTS: dict[str, ExtractConfig] = {
  f"imagenet_{name}": _job("tfds:imagenet2012", name, **_PAPER)
  for name in ("vit_b16", "vit_l16", "vit_h14", "bit_r50x4", "bit_r152x4")
} | {
  "cifar10_vit_b16": _job("tfds:cifar10", "vit_b16"),
  "cifar10_vit_ti16": _job("tfds:cifar10", "vit_ti16"),
  "cifar100_vit_b16": _job("tfds:cifar100", "vit_b16"),
  "digits": _job(_DIGITS, "glyph_vit"),
}


def load_experiment(name: str) -> ExtractConfig:
  """An experiment by its name; InputError: there is none."""
  if name not in EXPERIMENTS:
    near = difflib.get_close_matches(name, EXPERIMENTS, n=3)
    raise InputError(
      f"{name[:80]!a} is no file, folder or URL, nor an experiment:"
      f" {'did you mean' if near else 'there are'}"
      f" {', '.join(near or EXPERIMENTS)}."
    )
  return EXPERIMENTS[name]
