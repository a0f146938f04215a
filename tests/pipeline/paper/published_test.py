import pytest

from oneshot_dp.pipeline.paper.published import PUBLISHED, references_for


def test_the_numbers_of_the_abstracts():
  """Whoever changes one of them has to change it here, and say why."""
  assert {
    (each.source, each.delta, tuple(each.top1.items())) for each in PUBLISHED
  } == {
    ("arXiv 2205.02973, abstract", 1e-6, ((4.0, 0.817), (10.0, 0.817))),
    ("arXiv 2204.13650, abstract", 8e-7, ((0.5, 0.838), (8.0, 0.867))),
    ("arXiv 2211.13403, abstract", 8e-7, ((0.1, 0.843), (8.0, 0.88))),
  }
  assert [each.is_range for each in PUBLISHED] == [True, False, False]
  assert all(each.citation and each.setting for each in PUBLISHED)


@pytest.mark.parametrize(
  ("dataset", "always", "drawn"),
  [
    ("imagenet2012", False, True),
    ("imagenet2012_subset/10pct", False, True),
    ("imagenet_v2", False, False),
    ("cifar10", False, False),
    ("cifar10", True, True),
  ],
)
def test_they_are_about_imagenet(dataset, always, drawn):
  assert bool(references_for(dataset, always=always)) is drawn
