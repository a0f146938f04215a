"""The names, without what takes long to import."""

import subprocess
import sys

import pytest

from oneshot_dp.extract.backbones.names import backbone_names, named
from oneshot_dp.extract.images.resize import Preprocessing
from tests.extract.refusals import refused


@pytest.mark.parametrize("name", backbone_names())
def test_every_listed_name_is_complete(name):
  row = named(name)
  assert row.name == name
  assert backbone_names()[name].isprintable()
  assert Preprocessing(**row.reference).image_size > 0
  if name in ("wrn_28_10", "glyph_vit"):
    assert row.address is None
  else:
    assert row.address == f"hf://timm/{row.timm}@main/model.safetensors"


def test_weights_are_those_that_saw_no_imagenet_1k_where_there_are_such():
  for name, prefix in (
    ("vit_ti16", "augreg_in21k"),
    ("bit_r50x1", "goog_in21k"),
  ):
    timm = named(name).timm
    assert timm is not None
    assert timm.endswith(f".{prefix}")


@pytest.mark.parametrize(
  ("name", "size", "resize"),
  [
    ("vit_ti16", 224, "square"),
    ("deit_b16", 224, 256),
    ("dinov2_reg_g14", 224, 256),
    ("siglip_b16", 224, "square"),
    ("siglip_l16", 256, "square"),
    ("siglip_so400m14", 384, "square"),
    ("bit_r50x1", 448, "square"),
    ("bit_r152x4", 480, "square"),
    ("nf_resnet50", 288, 306),
    ("nfnet_f0", 256, 284),
    ("nfnet_f1", 320, 351),
    ("nfnet_f2", 352, 382),
    ("nfnet_f3", 416, 442),
    ("wrn_28_10", 32, "square"),
    ("glyph_vit", 32, "square"),
    ("vit_b14", 224, "square"),  # families take other sizes as well
  ],
)
def test_images_are_shown_as_published(name, size, resize):
  shown = Preprocessing(**named(name).reference)
  assert (shown.image_size, shown.resize) == (size, resize)
  bilinear = name.startswith(("bit", "wrn"))
  assert shown.resample == ("bilinear" if bilinear else "bicubic")
  cropped = name.startswith(("deit", "dino", "nf"))
  own = {"wrn_28_10": 0.49139968}.get(name, 0.485 if cropped else 0.5)
  assert shown.mean[0] == own


@pytest.mark.parametrize(
  "name",
  [
    *("bit_r50", "bit_r50x0", "bit_r18x1", "bit_r50x04", "xbit_r50x1"),
    *("nf_resnet18", "resnet50", "nfnet_f4", "nfnet", "vit_b0", "vit_m16"),
    *("wrn_17_4", "vit_b16\n", "", "vit-b16", "\x1b[31m"),
  ],
)
def test_other_names_mean_no_network(name):
  with refused("--backbone '.*' is unknown"):
    named(name)


def test_the_nearest_names_are_shown():
  with refused("did you mean .*vit_b16"):
    named("vit_b_16")


def test_the_list_needs_nothing_that_takes_long():
  code = (
    "import sys\n"
    "from oneshot_dp.extract.backbones.names import backbone_names\n"
    "assert len(backbone_names()) > 40\n"
    "print([m for m in ('jax', 'numpy', 'flax') if m in sys.modules])\n"
  )
  said = subprocess.check_output([sys.executable, "-c", code], text=True)
  assert said.strip() == "[]"
