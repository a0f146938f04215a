import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.resnet import nf_resnet, nfnet
from tests.extract.backbones.conv_modules import architecture


@pytest.mark.parametrize(
  ("name", "side", "resize"),
  [
    *((name, 288, 306) for name in nf_resnet.EXAMPLES),
    ("nfnet_f0", 256, 284),
    ("nfnet_f1", 320, 351),
    ("nfnet_f2", 352, 382),
    ("nfnet_f3", 416, 442),
  ],
)
def test_examples_are_preprocessed_as_published(name, side, resize):
  assert name in (*nf_resnet.EXAMPLES, *nfnet.EXAMPLES)
  found = architecture(name)
  assert found.name == name
  reference = found.reference
  assert (reference.image_size, reference.resize) == (side, resize)
  assert reference.resample == "bicubic"
  assert reference.mean == (0.485, 0.456, 0.406)
  assert reference.std == (0.229, 0.224, 0.225)


@pytest.mark.parametrize(
  "name", ["nf_resnet18", "nf_seresnet50", "resnet50", "nfnet_f4", "nfnet"]
)
def test_other_names_mean_no_network(name):
  assert nf_resnet.find(name) is None
  assert nfnet.find(name) is None


@pytest.mark.parametrize("name", ["nf_resnet50", "nfnet_f0", "bit_r50x1"])
def test_another_embedding_is_refused(name):
  with pytest.raises(InputError, match=r"embedding='gap'.*use 'pooled'"):
    architecture(name).build("gap", "float32")
