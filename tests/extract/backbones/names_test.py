"""The names, without what takes long to import."""

import subprocess
import sys

from oneshot_dp.extract.backbones.names import backbone_names, named
from oneshot_dp.extract.images import Preprocessing
from tests.extract.refusals import refused


def test_every_listed_name_is_complete():
  for name in backbone_names():
    row = named(name)
    address = f"hf://timm/{row.timm}@main/model.safetensors"
    assert row.address == address or name in ("wrn_28_10", "glyph_vit")


SIZES = {
  "vit_ti16": (224, "square"),
  "deit_b16": (224, 256),
  "dinov2_reg_g14": (224, 256),
  "siglip_b16": (224, "square"),
  "siglip_l16": (256, "square"),
  "siglip_so400m14": (384, "square"),
  "bit_r50x1": (448, "square"),
  "bit_r152x4": (480, "square"),
  "nf_resnet50": (288, 306),
  **{
    f"nfnet_f{i}": sizes
    for i, sizes in enumerate([(256, 284), (320, 351), (352, 382), (416, 442)])
  },
  "wrn_28_10": (32, "square"),
  "vit_b14": (224, "square"),  # families take other sizes as well
}


def test_images_are_shown_as_published():
  for name, size in SIZES.items():
    shown = Preprocessing(**named(name).reference)
    assert (shown.image_size, shown.resize) == size
    bilinear = name.startswith(("bit", "wrn"))
    assert shown.resample == ("bilinear" if bilinear else "bicubic")
    cropped = name.startswith(("deit", "dino", "nf"))
    own = {"wrn_28_10": 0.49139968}.get(name, 0.485 if cropped else 0.5)
    assert shown.mean[0] == own


def test_other_names_mean_no_network():
  for name in (
    *("bit_r50", "bit_r50x0", "bit_r18x1", "bit_r50x04", "xbit_r50x1"),
    *("nf_resnet18", "resnet50", "nfnet_f4", "nfnet", "vit_b0", "vit_m16"),
    *("wrn_17_4", "vit_b16\n", "", "vit-b16", "\x1b[31m"),
  ):
    with refused("--backbone '.*' is unknown"):
      named(name)


def test_the_list_needs_nothing_that_takes_long():
  code = (
    "import sys\n"
    "from oneshot_dp.extract.backbones.names import backbone_names\n"
    "assert len(backbone_names()) > 40\n"
    "print([m for m in ('jax', 'numpy', 'flax') if m in sys.modules])\n"
  )
  said = subprocess.check_output([sys.executable, "-c", code], text=True)
  assert said.strip() == "[]"
