import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.resnet import nf_resnet
from tests.extract.backbones.conv_modules import architecture


@pytest.mark.parametrize("name", nf_resnet.EXAMPLES)
def test_examples_are_preprocessed_as_published(name):
  found = architecture(name)
  assert found.name == name
  assert found.reference.image_size == 288
  assert found.reference.resize == 306
  assert found.reference.resample == "bicubic"
  assert found.reference.std == (0.229, 0.224, 0.225)


@pytest.mark.parametrize("name", ["nf_resnet18", "nf_seresnet50", "resnet50"])
def test_other_names_mean_no_network(name):
  assert nf_resnet.find(name) is None


def test_another_embedding_is_refused():
  with pytest.raises(InputError, match=r"embedding='gap'.*use 'pooled'"):
    architecture("nf_resnet50").build("gap", "float32")
