"""Means over views: what a head of plain embeddings may be applied to."""

import pytest

from tests.pipeline.command_line import fails, succeeds
from tests.sample_caches import write_clusters

VIEWS = {"count": 4, "kind": "random crops", "min_area": 0.08}
REFUSED = "holds means over 4 random views of each image"


@pytest.fixture
def head(capsys, tmp_path, place):
  """A head of plain embeddings."""
  succeeds(capsys, *place("TRAIN --epsilon 8 --out head"))
  return tmp_path / "head"


@pytest.fixture
def plain_eval(tmp_path):
  return write_clusters(tmp_path / "plain", seed=1, split="test").path


@pytest.fixture
def eval_of_views(tmp_path):
  return write_clusters(
    tmp_path / "views", seed=1, split="test", views=VIEWS
  ).path


@pytest.fixture
def train_of_views(tmp_path):
  return write_clusters(tmp_path / "train_views", views=VIEWS).path


@pytest.mark.parametrize(
  "line", ["evaluate HEAD --cache CACHE", "predict HEAD CACHE --out -"]
)
def test_rows_of_views_are_not_scored_by_a_head_of_plain_rows(
  capsys, head, eval_of_views, line
):
  places = {"HEAD": head, "CACHE": eval_of_views}
  words = [places.get(word, word) for word in line.split()]

  assert REFUSED in fails(capsys, *words)


@pytest.mark.parametrize(
  "line",
  [
    "SWEEP --epsilons 1 --out new --eval-cache",
    "TRAIN --epsilon 1 --out new --unlabeled",
  ],
)
def test_a_head_of_plain_rows_is_not_trained_beside_rows_of_views(
  capsys, place, ledger_file, eval_of_views, line
):
  said = fails(capsys, *place(line), eval_of_views)

  assert REFUSED in said
  assert not ledger_file.exists()  # nothing was charged


def test_a_head_of_views_is_for_plain_rows_and_for_views(
  capsys, tmp_path, train_of_views, plain_eval, eval_of_views
):
  words = f"train --cache {train_of_views} --epsilon 8 --delta 1e-5"
  succeeds(capsys, *words.split(), "--out", tmp_path / "head")

  for cache in (plain_eval, eval_of_views):
    succeeds(capsys, "evaluate", tmp_path / "head", "--cache", cache)


def test_views_of_which_no_count_is_stated_are_refused_in_one_line(
  capsys, head, tmp_path
):
  views = write_clusters(tmp_path / "views", split="test", views={}).path

  line = fails(capsys, "evaluate", head, "--cache", views)

  assert "holds means over several random views" in line
