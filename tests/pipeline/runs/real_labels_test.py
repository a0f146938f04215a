"""ImageNet-ReaL labels: matched to the rows, or refused."""

import json

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.real_labels import RealLabels
from oneshot_dp.pipeline.saved_head.directory import read_head
from tests.pipeline.command_line import succeeds
from tests.pipeline.runs.numbered_caches import (
  ROWS,
  entries,
  labels,
  numbers,
  write_entries,
  write_numbered,
)
from tests.pipeline.sample_caches import write_clusters

HEAD = "heads/epsilon-2-draw-0"


@pytest.fixture
def numbered(tmp_path):
  return write_numbered(tmp_path / "numbered")


@pytest.fixture
def file(tmp_path):
  return write_entries(tmp_path / "real.json")


def logits_of(head, cache) -> np.ndarray:
  rows = np.concatenate([block.embedding for block in cache.blocks()])
  return rows.astype(np.float32) @ np.asarray(head.kernel) + np.asarray(
    head.bias
  )


def test_a_row_is_scored_by_the_list_of_its_number(
  numbered, file, finished_sweep
):
  saved = read_head(finished_sweep.path / HEAD)
  answers = logits_of(saved.head, numbered).argmax(axis=1)
  lists = [entries()[number - 1] for number in numbers()]
  listed = [(a in some) for a, some in zip(answers, lists, strict=True) if some]
  real = RealLabels.of(file, numbered)
  (score,) = real.evaluate([saved.head], numbered).scores
  assert (
    score.num_examples == len(listed) == real.statement["num_listed"] < ROWS
  )
  assert score.top1 == np.mean(listed)
  # By the place in the cache, or counting from 0, it is another number.
  (plain,) = evaluate_on_public_labels([saved.head], numbered).scores
  assert score.top1 != plain.top1
  for wrong in (range(ROWS), numbers() % ROWS):
    others = [entries()[place] for place in wrong]
    hits = [a in some for a, some in zip(answers, others, strict=True) if some]
    assert np.mean(hits) != score.top1


def test_counts_are_stated(numbered, file):
  found = RealLabels.of(file, numbered).statement
  lists = [entries()[number - 1] for number in numbers()]
  assert found["num_listed"] == sum(bool(some) for some in lists)
  assert found["num_left_out"] == sum(not some for some in lists) > 5
  agree = sum(
    label in some for label, some in zip(labels(), lists, strict=True)
  )
  assert found["original_label_in_list"] == agree / found["num_listed"] < 1
  assert len(found["real_labels_sha256"]) == 64


@pytest.mark.parametrize(
  ("content", "said"),
  [
    ({"1": [0]}, r"damaged \(Expected `array`, got `object`"),
    ([], "there are 0 lists"),
    ([[0], 1], r"at `\$\[1\]`\); it must list the classes of each image"),
    ([[0], [1, 4]], r"<= 3 - at `\$\[1\]\[1\]`.* integers in \[0, 4\)"),
    ([[True]], "Expected `int`, got `bool`"),
    (entries()[:-1], "example_id=80 has no list of labels: .* ids 1 to 79"),
    ([[]] * ROWS, "0 have their own label in the list"),
    (entries()[1:] + entries()[:1], "numbers them or their classes otherwise"),
    ([[0]] * ROWS, "is about other images, or numbers them"),
  ],
)
def test_a_file_that_does_not_fit(numbered, tmp_path, content, said):
  file = write_entries(tmp_path / "real.json", content)
  with pytest.raises(InputError, match=said) as caught:
    RealLabels.of(file, numbered)
  assert "\n" not in str(caught.value)


def test_a_file_that_is_none_or_no_json(numbered, tmp_path):
  with pytest.raises(InputError, match="cannot be read: No such file"):
    RealLabels.of(tmp_path / "real.json", numbered)
  (tmp_path / "real.json").write_text("[[0],")
  with pytest.raises(InputError, match="is damaged"):
    RealLabels.of(tmp_path / "real.json", numbered)


def test_places_in_a_split_are_no_numbers(tmp_path, file):
  """Even where every one of them has a list."""
  plain = write_numbered(tmp_path / "plain", id_source="position")
  with pytest.raises(InputError, match=r"--source\.id-key file_name"):
    RealLabels.of(file, plain)


@pytest.mark.parametrize("repeat", [(3, 5), (3, 79)])
def test_a_number_that_comes_twice(tmp_path, file, monkeypatch, repeat):
  """In one block or in two; no cache like it is made, but one may be forged."""
  ids = numbers()
  ids[repeat[1]] = ids[repeat[0]]
  monkeypatch.setattr(
    "oneshot_dp.extract.cache.checked_rows.BlockBuilder._claim",
    lambda self, ids: None,
  )
  monkeypatch.setattr(
    "oneshot_dp.extract.cache.writer.check_distinct", lambda cache: None
  )
  forged = write_numbered(tmp_path / "forged", example_id=ids)
  with pytest.raises(InputError, match="two rows have the same number"):
    RealLabels.of(file, forged)


def test_the_command_says_both_scores(place, capsys, numbered, file):
  evaluate = "evaluate {head} --cache {tmp}/numbered --not-trained-on --json"
  out, err = succeeds(capsys, *place(f"{evaluate} --real-labels {file}"))
  assert "treated as public" in err
  found = json.loads(out)
  real = found["real"]
  assert found["num_examples"] == ROWS
  assert real["num_examples"] == real["evaluation"]["num_listed"] < ROWS
  assert real["evaluation"]["mechanism"].startswith("ReaL labels treated as")
  out, _ = succeeds(capsys, *place(evaluate))
  plain = json.loads(out)
  assert "real" not in plain
  assert plain["top1"] == found["top1"] != real["top1"]


@pytest.mark.parametrize("given", [True, False])
def test_imported_rows_have_the_ids_of_their_file(tmp_path, given, file):
  arrays = {
    "embedding": np.ones((ROWS, 3), np.float32),
    "label": labels(),
    "class_names": np.array(list("abcd")),
  } | ({"example_id": numbers()} if given else {})
  np.savez(tmp_path / "f.npz", allow_pickle=False, **arrays)
  cache = import_features(tmp_path / "f.npz", tmp_path / "imported")
  if given:
    assert cache.info.id_source == "example_id"
    assert RealLabels.of(file, cache).statement["num_listed"] == 63
  else:
    with pytest.raises(InputError, match="its ids are places"):
      RealLabels.of(file, cache)


def test_ids_from_zero_have_no_list(tmp_path, file):
  cache = write_clusters(
    tmp_path / "zero", counts=(20, 20, 20, 20), id_source="example_id"
  )
  with pytest.raises(InputError, match="example_id=0 has no list"):
    RealLabels.of(file, cache)
