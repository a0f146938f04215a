import dataclasses

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace

SPACE = FeatureSpace(
  owner="caches/train",
  backbone="vit_ti16",
  backbone_fingerprint="ab" * 32,
  class_names=("cat", "dog"),
  rows=("pets", "train"),
)
TEST = dataclasses.replace(SPACE, owner="caches/test", rows=("pets", "test"))


def test_the_same_space_holds_whatever_its_backbone_is_called():
  """The fingerprint holds the name: a renamed backbone has another."""
  SPACE.check_evaluates_on(TEST)
  SPACE.check_evaluates_on(dataclasses.replace(TEST, backbone="mine"))


@pytest.mark.parametrize(
  ("change", "said"),
  [
    (
      {"backbone_fingerprint": "cd" * 32},
      "caches/train has embeddings of vit_ti16 (abababababab), caches/test of"
      " vit_ti16 (cdcdcdcdcdcd): extract both",
    ),
    (
      {"class_names": ("cat", "dog", "owl")},
      "caches/train has 2 classes, caches/test 3",
    ),
    ({"class_names": ("dog", "cat")}, "name their classes differently"),
    (
      {"rows": SPACE.rows},
      "caches/test (split train) may hold training rows (pets, split train)",
    ),
  ],
)
def test_another_space_is_refused(change, said):
  other = dataclasses.replace(TEST, **change)
  with pytest.raises(InputError) as error:
    SPACE.check_evaluates_on(other)
  assert said in str(error.value)


def test_a_head_has_the_space_of_its_cache(finished_sweep, train_cache):
  saved = read_head(finished_sweep.path / "heads/epsilon-2-draw-0")
  of_head = FeatureSpace.of_receipt("head", saved.receipt)
  of_cache = FeatureSpace.of_cache("head", train_cache.info)
  assert of_head == of_cache
