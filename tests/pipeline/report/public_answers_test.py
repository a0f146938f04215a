import numpy as np
import pytest

from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.pipeline.report.public_answers import PublicAnswers, ask
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from tests.pipeline.sample_caches import CLASSES, DIM, write_clusters


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
  return write_clusters(
    tmp_path_factory.mktemp("rows") / "test", (7, 300, 20, 5), split="test"
  )


def random_head(seed: int, **changes) -> LinearHead:
  rng = np.random.default_rng(seed)
  return LinearHead(
    kernel=rng.standard_normal((DIM, CLASSES)).astype(np.float32),
    bias=rng.standard_normal(CLASSES).astype(np.float32),
    **changes,
  )


@pytest.mark.parametrize("unit_norm", [False, True])
def test_they_are_the_answers_that_accuracies_count(rows, unit_norm):
  heads = [random_head(seed, unit_norm=unit_norm) for seed in range(3)]
  answers = ask(heads, rows)
  assert answers.class_sums is None
  for i, score in enumerate(evaluate_on_public_labels(heads, rows).scores):
    assert (answers.answer[i] == answers.label).mean() == score.top1


def test_a_common_bias_of_ten_does_not_swallow_small_differences(rows):
  kernel = np.eye(DIM, CLASSES, dtype=np.float32) * 1e-7
  head = LinearHead(kernel=kernel, bias=np.full(CLASSES, -10, np.float32))
  answers = ask([head], rows)
  (score,) = evaluate_on_public_labels([head], rows).scores
  assert (answers.answer[0] == answers.label).mean() == score.top1
  assert len(np.unique(answers.answer)) == CLASSES


def test_rows_are_summed_class_by_class(rows):
  answers = ask(
    [random_head(0)], rows, lambda block: 2.0 * block.embedding.astype(float)
  )
  expected = np.zeros((CLASSES, DIM))
  for block in rows.blocks():
    for row, label in zip(block.embedding, block.label, strict=True):
      expected[label] += 2 * row.astype(float)
  assert answers.class_sums is not None
  np.testing.assert_allclose(answers.class_sums, expected)


ANSWERS = PublicAnswers(
  num_classes=3,
  label=np.array([0, 0, 0, 0, 2, 2]),
  answer=np.array([[0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 0]]),
  class_sums=None,
)


def test_shares_are_of_the_labels_rows_and_mean_over_heads():
  np.testing.assert_allclose(
    ANSWERS.confusion.toarray(),
    [[3 / 8, 4 / 8, 1 / 8], [0, 0, 0], [1 / 4, 0, 3 / 4]],
  )
  np.testing.assert_array_equal(
    ANSWERS.class_accuracy(), [[1 / 4, np.nan, 1], [1 / 2, np.nan, 1 / 2]]
  )
  # The most confused pairs are those of the matrix.
  assert ANSWERS.most_confused(2) == [(0, 1, 0.5), (2, 0, 0.25)]
  assert ANSWERS.most_confused(9) == [(0, 1, 0.5), (2, 0, 0.25), (0, 2, 0.125)]


def test_pairs_of_very_many_classes_need_no_matrix():
  """One of 10^6 by 10^6 would not fit."""
  many = PublicAnswers(
    num_classes=10**6,
    label=np.array([999_999, 3]),
    answer=np.array([[5, 3]]),
    class_sums=None,
  )
  assert many.most_confused(3) == [(999_999, 5, 1.0)]
