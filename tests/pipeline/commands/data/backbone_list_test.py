from oneshot_dp.extract.backbones.registry import (
  backbone_names,
  find_architecture,
)
from oneshot_dp.pipeline.commands.data import backbone_list
from oneshot_dp.pipeline.commands.data.backbone_list import backbones


def test_every_name_has_a_line():
  lines = backbones(None).text.splitlines()
  names = [line.split()[0] for line in lines]
  assert names == [*backbone_names(), "FILE.py:FUNCTION"]
  assert all(len(line.split()) > 3 for line in lines)
  assert "; cls, mean," in lines[names.index("vit_b16")]


def test_all_about_one():
  rows = dict(
    line.split(maxsplit=1)
    for line in backbones("glyph_vit").text.split("\n")
    if not line.startswith(" ")
  )
  assert rows["parameters"] == "0.6 million without the head"
  assert rows["embeddings"].startswith(
    "pre_logits [128], cls [128], mean [128]"
  )
  assert rows["embeddings"].endswith("(the first is the default)")
  assert rows["image"] == "32 px, both sides resized to it, bicubic"
  assert "no weights" in backbones("random_patches").text
  told = backbone_list._resizing(find_architecture("deit_ti16").reference)
  assert told == "cropped from a shorter side of 256, bicubic"
