import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.resnet import nfnet
from tests.extract.backbones.conv_modules import architecture


@pytest.mark.parametrize(
  ("name", "side", "resize"),
  [
    ("nfnet_f0", 256, 284),
    ("nfnet_f1", 320, 351),
    ("nfnet_f2", 352, 382),
    ("nfnet_f3", 416, 442),
  ],
)
def test_examples_are_preprocessed_as_published(name, side, resize):
  assert name in nfnet.EXAMPLES
  found = architecture(name)
  assert found.name == name
  assert found.reference.image_size == side
  assert found.reference.resize == resize
  assert found.reference.resample == "bicubic"
  assert found.reference.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize("name", ["nfnet_f4", "nfnet", "dm_nfnet_f0"])
def test_other_names_mean_no_network(name):
  assert nfnet.find(name) is None


def test_another_embedding_is_refused():
  with pytest.raises(InputError, match=r"embedding='gap'.*use 'pooled'"):
    architecture("nfnet_f0").build("gap", "float32")
