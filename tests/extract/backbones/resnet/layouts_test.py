import pytest

from oneshot_dp.extract.backbones.resnet.layouts import family


@pytest.mark.parametrize(
  ("name", "what"),
  [
    ("resnet/block1/unit01/a/standardized_conv2d/kernel", "a BiT"),
    ("stages.0.blocks.0.norm3.weight", "a BiT"),
    ("bit.encoder.stages.0.layers.0.norm3.weight", "a BiT"),
    ("stages.0.0.skipinit_gain", "an NFNet"),
    ("stages.0.0.conv1.gain", "an NF-ResNet"),
    ("layer1.0.bn1.running_mean", "a network with batch normalisation"),
    ("blocks.0.attn.qkv.weight", "a transformer"),
    ("vit.encoder.layer.0.attention.output.dense.bias", "a transformer"),
    (
      "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/key/bias",
      "a transformer",
    ),
    ("features.0.weight", None),
  ],
)
def test_one_name_tells(name, what):
  assert family(["head.bias", name]) == what


def test_squeezing_does_not_make_a_transformer():
  names = ["stages.0.0.attn_last.fc1.weight", "stages.0.0.skipinit_gain"]
  assert family(names) == "an NFNet"
