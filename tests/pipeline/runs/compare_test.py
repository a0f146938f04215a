"""`compare`: what it writes, what it costs, and what it refuses."""

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.head_config import (
  HeadConfig,
  MethodName,
  PrivacyConfig,
  StepsConfig,
  called,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.pipeline.runs.compare import run_compare
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.run_contract import (
  Finished,
  RunContract,
  epsilon_of,
  sigma_of,
)
from tests.pipeline.saved_head.receipt_test import changed
from tests.pipeline.training.public_rows_test import shifted

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_pictures")]

DELTA = 1e-5
EPSILONS = (1.0, 4.0)
COMPARE = (
  "compare --cache {train} --eval-cache {eval} --epsilons 1 4 --delta 1e-5"
  " --out {out}"
)
ONE_STEP = ("lamb", "adam", "momentum")
OTHERS = ("whitened", "least-squares", "multi-step")


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
  """Chunks of 32 rows a device, padded no further, for heads of many steps."""

  def chosen(head: MethodName) -> HeadConfig:
    steps = StepsConfig(epochs=2) if head == "multi-step" else StepsConfig()
    return HeadConfig(head=head, steps=steps)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 32)
    patch.setattr("oneshot_dp.pipeline.runs.compare.HeadConfig", chosen)
    yield


@pytest.fixture(scope="module")
def finished(train_cache, eval_cache, tmp_path_factory) -> Finished:
  folder = tmp_path_factory.mktemp("compare")
  run = Run(
    train=train_cache,
    evaluation=eval_cache,
    out=folder / "out",
    baseline=True,
    ledger_dir=folder / "ledgers",
  )
  rows = run_compare(run, EPSILONS, PrivacyConfig(delta=DELTA))
  return Finished(path=folder / "out", rows=rows, evaluations=[eval_cache])


class TestContract(RunContract):
  command = COMPARE
  whole = epsilon_of([sigma_of(1.0, DELTA)] * 2, DELTA)
  charged = (2,)

  def quick(
    self,
    train: FeatureCache,
    evaluation: FeatureCache,
    noise_seed: int | None = None,
    **more: Any,
  ) -> list[SweepRow]:
    run = Run(train=train, evaluation=evaluation, **more)
    privacy = PrivacyConfig(delta=DELTA, noise_seed=noise_seed)
    return run_compare(run, (1.0,), privacy, methods=("lamb", "whitened"))


def test_every_head_at_every_epsilon_and_what_was_asked(finished):
  expected = {
    f"{method}-epsilon-{epsilon}-draw-0"
    for method in (*ONE_STEP, *OTHERS)
    for epsilon in (1, 4)
  } | {"logistic-NOT-PRIVATE"}
  assert {p.name for p in (finished.path / "heads").iterdir()} == expected
  config = json.loads((finished.path / "config.json").read_text())
  assert [head["head"] for head in config["heads"]] == [*ONE_STEP, *OTHERS]
  assert config["epsilons"] == list(EPSILONS)
  assert config["num_draws"] == 1


class TestWhatItCosts:
  def test_nested_heads_cost_their_largest_epsilon_and_others_compose(
    self, finished
  ):
    one, four = sigma_of(1.0, DELTA), sigma_of(4.0, DELTA)
    expected = epsilon_of([four, four, *[one, four] * 2], DELTA)
    results = json.loads((finished.path / "results.json").read_text())
    assert results["composed_epsilon"] == pytest.approx(expected, rel=1e-6)
    assert {row.composed_epsilon for row in finished.rows} == {
      results["composed_epsilon"]
    }
    releases = results["releases"]
    assert [release["heads"] for release in releases] == [
      list(ONE_STEP),
      *([method] for method in OTHERS),
    ]
    for release in releases:
      charged = release["noise_multipliers_charged"]
      if release["heads"][0] in ("lamb", "least-squares"):
        assert charged == pytest.approx([four])
      else:
        assert sorted(charged) == pytest.approx(sorted([one, four]))

  def test_heads_of_one_step_are_of_one_release(self, finished):
    """Fresh noise of its own would turn some of the signs."""
    name = "epsilon-1-draw-0"
    momentum, *others = (
      np.sign(read_head(finished.path / f"heads/{head}-{name}").head.kernel)
      for head in ("momentum", "lamb", "adam")
    )
    for other in others:
      np.testing.assert_array_equal(other, momentum)


class TestTheCeiling:
  def test_it_owns_up(self, finished, train_cache):
    *private, row = finished.rows
    assert row.head == "logistic"
    assert not row.private
    assert row.epsilon == float("inf")
    assert all(other.private for other in private)
    note = cache_ledger(train_cache, finished.ledgers).entries()[-1]
    assert (note["kind"], note["private"]) == ("baseline", False)
    receipt = read_head(finished.path / row.path).receipt
    assert receipt["composition"]["ledger_entry"] == note["entry"]

  def test_its_receipt_cannot_be_changed(self, finished):
    exact = read_head(finished.path / "heads/logistic-NOT-PRIVATE").receipt
    assert problems(exact) == []
    for path, value in (
      (("private",), True),
      (("mechanism", "l2_penalty"), 0.5),
      (("mechanism", "clipped"), "row"),
      (("privacy", "epsilon"), 1.0),
    ):
      assert problems(changed(exact, path, value))
    # The numbers of a private receipt, about a head that no noise is in.
    name = "heads/whitened-epsilon-1-draw-0"
    private = read_head(finished.path / name).receipt
    forged = exact | {
      key: private[key] for key in ("private", "privacy", "composition")
    }
    (problem,) = problems(forged)
    assert re.fullmatch(
      r"noise_sd_steps is [\d.]+ and should be 0\.0\.", problem
    )


def test_the_table_of_the_command(place, capsys):
  words = "--heads auto lamb whitened --baseline --noise-seed 3"
  out, err = succeeds(capsys, *place(f"{COMPARE} {words}"))
  header, lamb, whitened, logistic, total, where = out.splitlines()
  assert header.split() == ["top-1", "%", "epsilon", "1", "epsilon", "4"]
  assert [lamb.split()[0], whitened.split()[0]] == ["lamb", "auto"]
  assert "warning: the noise comes from a seed" in err
  assert lamb.endswith("NOT PRIVATE")
  assert whitened.endswith("NOT PRIVATE")
  assert logistic.startswith("logistic")
  assert logistic.endswith("NOT PRIVATE: no noise")
  sigmas = [sigma_of(each, DELTA) for each in (4.0, 1.0, 4.0)]
  epsilon = epsilon_of(sigmas, DELTA)
  found = re.search(r"epsilon = ([\d.]+) at delta = 1e-05", total)
  assert found
  assert epsilon <= float(found[1]) < epsilon + 2e-4
  assert "(nested: lamb; independent: auto)" in total
  assert "test labels treated as public" in total
  assert "out: 5 heads in" in where
  assert err.count("charged to") == 1


class TestChoose:
  """`--choose`: one head, one charge, no exact score."""

  CHOOSE = (
    "compare --choose --cache {train} --epsilons 4 --delta 1e-5 --out {out}"
  )

  @pytest.mark.parametrize("of_users", [False, True])
  def test_it_delivers_what_verifies(
    self, place, capsys, tmp_path, train_cache, users, of_users
  ):
    if of_users:
      train_cache, _ = users
    asked = self.CHOOSE.replace("{train}", str(train_cache.path))
    out, err = succeeds(capsys, *place(asked))
    assert "out: epsilon = 4 at delta = 1e-05" in out
    method = read_head(tmp_path / "out").receipt["training"]["head"]
    assert out.endswith(f"\nchosen: {called(method)}\n")
    assert err.splitlines()[1].startswith(
      "choosing among lamb, adam, momentum, auto, "
    )
    folder = tmp_path / "out"
    assert verify_head(folder, tmp_path / "ledgers").problems == ()
    (entry,) = cache_ledger(train_cache, None).entries()
    assert entry["composed_epsilon"] == pytest.approx(4)
    looked_at = [each["head"] for each in entry["candidates"]]
    receipt = read_head(folder).receipt
    assert receipt["privacy"]["epsilon"] == 4
    assert receipt["mechanism"]["candidates"] == looked_at
    assert looked_at == [*ONE_STEP, *OTHERS]
    card = (folder / "README.md").read_text()
    assert f"the best of {', '.join(looked_at)}, by noisy counts" in card
    of = "privacy units" if of_users else "rows"
    assert f"on about 10 % of the {of}, which none" in card
    assert ("its examples are trained on, or counted" in card) == of_users
    assert problems(receipt) == []
    for path, value in (
      (("training", "head"), "svm"),
      (("mechanism", "noise_multiplier"), 9.0),
      (("mechanism", "chosen", "num_examples"), 9),
      (("mechanism", "clipped"), "row" if of_users else "whole unit"),
      (("mechanism", "chosen", "clipped"), "row" if of_users else "mean"),
      (("mechanism", "feature_dim"), 9),
      (("mechanism", "chosen", "feature_dim"), 9),
      (("mechanism", "chosen", "num_classes"), 9),
      (("mechanism", "chosen", "rows_per_unit"), 2),
      (("mechanism", "candidates"), [*looked_at, "lamb"]),
      (("composition", "order"), "nested"),
    ):
      assert problems(changed(receipt, path, value))

  def test_it_goes_on_from_no_other_head(
    self, place, capsys, tmp_path, monkeypatch
  ):
    """A chain that is forged, though all that follows from it is, too."""
    # With all its steps, it is chosen.
    monkeypatch.setattr(whitened, "WhiteningRule", WhiteningRule)
    train = shifted(tmp_path / "train", 300, 1)  # where lamb is lost
    command = self.CHOOSE.replace("{train}", str(train.path))
    succeeds(capsys, *place(f"{command} --heads lamb whitened"))
    receipt = read_head(tmp_path / "out").receipt
    assert problems(receipt) == []
    rule = WhiteningRule.from_json(receipt["mechanism"]["chosen"])
    forged = dataclasses.replace(rule, before_noise_multiplier=1e3).as_json()
    (problem,) = problems(changed(receipt, ("mechanism", "chosen"), forged))
    assert "the head goes on from one of noise multiplier 0.0" in problem

  def test_it_was_made_of_as_many_rows(self, place, capsys, tmp_path):
    """Though nothing else that it says rests on n."""
    train = shifted(tmp_path / "train", 300, 1)  # where lamb is lost
    command = self.CHOOSE.replace("{train}", str(train.path))
    words = "--heads lamb least-squares --epsilons 100 --noise-seed 4"
    succeeds(capsys, *place(f"{command} {words}"))
    receipt = read_head(tmp_path / "out").receipt
    assert receipt["training"]["head"] == "least-squares"
    path = ("mechanism", "chosen", "num_examples")
    assert problems(changed(receipt, path, 9))

  def test_what_it_refuses(self, place, capsys, train_cache):
    for words, said in (
      ("--epsilons 1 2", "--choose writes one head: give one epsilon"),
      ("--baseline", "--choose writes one head"),
      ("--eval-cache {eval}", "--choose scores by held-out private rows"),
      ("--heads lamb", "give two heads or more to choose from"),
    ):
      assert said in fails(capsys, *place(f"{self.CHOOSE} {words}"))
    none = place(self.CHOOSE.replace("--choose ", ""))
    assert "compare needs --eval-cache" in fails(capsys, *none)
    assert cache_ledger(train_cache, None).entries() == []


def test_every_head_takes_units(users, tmp_path, capsys):
  train, test = users
  argv = ["--epsilons", 8, "--delta", 1e-5, "--baseline"]
  argv += ["--cache", train.path, "--eval-cache", test.path]
  out, _ = succeeds(capsys, "compare", *argv, "--out", tmp_path / "out")
  found = {line.split()[0] for line in out.splitlines()[1:8]}
  assert found == {*ONE_STEP, "auto", *OTHERS[1:], "logistic"}
  for folder in (tmp_path / "out" / "heads").iterdir():
    assert verify_head(folder).problems == ()
  card = tmp_path / "out/heads/logistic-NOT-PRIVATE/README.md"
  assert "nothing bounds their influence" in card.read_text()
