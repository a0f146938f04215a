"""Training and sweeping: what is refused, charged, written and shown."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.linear_dp import private_sums
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.entries import spent
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_heads import heads_in, mu2_of
from tests.sample_caches import DIM, write_clusters, write_rows

DELTA = 1e-5


class TestTrain:
  @pytest.mark.slow
  @pytest.mark.parametrize("head", ["auto", "lamb"])
  def test_a_head_is_charged_vouched_for_and_right(
    self, capsys, place, ledger, eval_cache, head
  ):
    words = f"TRAIN --epsilon 8 --head {head} --out h"
    out, err = succeeds(capsys, *place(words))
    assert spent(ledger.entries("clusters")) == mu2_of(8.0)
    assert verify_head(Path("h"), ledger).vouched
    assert out.startswith(f"h: {head} at epsilon = 8, delta = 1e-05, noise")
    first, plan = err.splitlines()
    assert first.startswith("new ledger entry for 'clusters' in ")
    assert plan.startswith(
      f"{head} at epsilon 8, delta 1e-05, from 180 embeddings of dimension"
      f" {DIM} in 4 classes: 'clusters' is charged epsilon 8 in total, in "
    )
    out, _ = succeeds(capsys, *place(f"evaluate h --cache {eval_cache.path}"))
    assert out.startswith("top-1 100.00 % (95 % interval ")

  @pytest.mark.slow
  def test_a_seed_is_not_private(self, capsys, place, ledger, monkeypatch):
    words = place("TRAIN --epsilon 8 --head lamb --noise-seed 1 --out")
    out, _ = succeeds(capsys, *words, "a")
    succeeds(capsys, *words, "b")
    assert out.rstrip().endswith("NOT PRIVATE")
    a, b = (read_head(Path(name)) for name in "ab")
    assert not a.trained.private
    assert a.stated["weights_sha256"] == b.stated["weights_sha256"]
    assert spent(ledger.entries("clusters")) == 0
    assert [e.mu_squared for e in ledger.entries()] == [None, None]
    assert stat.S_IMODE(Path("a").stat().st_mode) == 0o700
    draw = private_sums.rounded_gaussian
    sources = []

    def noted(shape, sd, source):
      sources.append(source)
      return draw(shape, sd, source)

    monkeypatch.setattr(private_sums, "rounded_gaussian", noted)
    write_clusters(Path("t"), (40,) * 4, seed=4, dataset="tests")
    words = "SWEEP --epsilons 8 --head lamb --noise-seed 1 --out s"
    succeeds(capsys, *place(f"{words} --eval-cache t --private-eval 2"))
    assert len({*sources}) == 1 < len(sources)  # or it would begin anew
    for name in "results.csv", "results.json", "config.json", "report.html":
      assert "NOT PRIVATE" in (Path("s") / name).read_text()

  def test_noise_is_drawn_after_the_charge_is_on_the_disk(
    self, capsys, place, ledger, monkeypatch
  ):
    draw = private_sums.rounded_gaussian
    found = []

    def noted(*arguments):
      found.append(spent(ledger.entries("clusters")))
      return draw(*arguments)

    monkeypatch.setattr(private_sums, "rounded_gaussian", noted)
    words = place("TRAIN --epsilon 8 --head lamb --out h --json")
    facts = json.loads(succeeds(capsys, *words)[0])
    assert found == [mu2_of(8.0)]
    assert facts["receipt"] == json.loads(Path("h/receipt.json").read_text())

  def test_a_start_has_vectors_by_class_name(self, capsys, place):
    vectors = {f"class {i}": np.eye(DIM)[i] for i in range(4)}
    np.savez("s.npz", **vectors)
    succeeds(capsys, *place("TRAIN --epsilon 2 --start s.npz --out h"))
    options = read_head(Path("h")).stated["options"]
    assert len(options["start_sha256"]) == 64


class TestSweep:
  @pytest.mark.slow
  def test_both_heads_nested_and_drawn(self, capsys, place, ledger):
    words = "SWEEP --epsilons 1 8 --head lamb auto --num-draws 2 --out s"
    out, _ = succeeds(capsys, *place(words))
    # All epsilons of a draw cost the largest; each draw of a head is bought.
    assert spent(ledger.entries("clusters")) == 4 * mu2_of(8.0)
    assert len(Path("s/results.csv").read_text().splitlines()) == 1 + 8
    results = json.loads(Path("s/results.json").read_text())
    assert out.splitlines()[-2].startswith("all private heads together: epsil")
    assert sum(results["test_counts"]) == 80
    together = mu_squared_from_epsilon(results["epsilon"], DELTA)
    assert together == pytest.approx(float(4 * mu2_of(8.0)), rel=1e-6)
    for row in results["heads"]:
      head = read_head(Path("s") / row["path"])
      assert head.receipt["follows"]["epsilon"] <= row["epsilon"]
      assert verify_head(head.path, ledger).vouched
    weights = {path.read_bytes() for path in heads_in("s")}
    assert len(weights) == 8  # no draw is another's
    for name in "accuracy.png", "accuracy.pdf", "report.html", "config.json":
      assert (Path("s") / name).stat().st_size
    assert stat.S_IMODE(Path("s/results.csv").stat().st_mode) != 0o600

  @pytest.mark.slow
  def test_a_baseline_is_the_owners_alone(self, capsys, place, ledger):
    words = "SWEEP --epsilons 1 --head lamb --baseline --out s"
    out, err = succeeds(capsys, *place(words))
    assert "without noise, NOT PRIVATE" in err
    assert [e.mu_squared is None for e in ledger.entries()] == [False, True]
    assert out.splitlines()[2].endswith("NOT PRIVATE")
    for path in [Path("s"), *Path("s").rglob("*")]:
      mode = stat.S_IMODE(path.stat().st_mode)
      assert mode == (0o700 if path.is_dir() else 0o600)

  @pytest.mark.slow
  def test_a_private_test_set_pays_and_is_private_from_then(
    self, capsys, place, ledger, eval_cache
  ):
    write_clusters(Path("t"), (40,) * 4, seed=4, dataset="tests")
    words = "SWEEP --eval-cache t --epsilons 8 --private-eval 2 --head lamb"
    out, _ = succeeds(capsys, *place(f"{words} --out s"))
    assert "(noisy counts at epsilon = 2)" in out
    assert spent(ledger.entries("tests")) == mu2_of(2.0)
    said = json.loads(Path("s/results.json").read_text())
    assert said["evaluation"]["labels"] == "private"
    assert said["test_counts"] is None
    assert said["heads"][0]["recall"] is None
    head = said["heads"][0]["path"]
    line = fails(capsys, *place(f"evaluate s/{head} --cache t"))
    assert "among the private rows of 'tests'" in line

  @pytest.mark.slow
  def test_balanced_is_autos_alone(self, capsys, place):
    words = place("SWEEP --epsilons 8 --head lamb auto --balanced --out s")
    succeeds(capsys, *words)
    auto, lamb = (read_head(p.parent).stated["options"] for p in heads_in("s"))
    assert auto["balanced"]
    assert not lamb["balanced"]


def test_memory_that_is_not_there_is_refused(
  capsys, place, ledger, monkeypatch
):
  monkeypatch.setattr(
    "oneshot_dp.pipeline.runs.resources.memory_needed",
    lambda *_, **__: 1 << 50,
  )
  line = fails(capsys, *place("TRAIN --epsilon 1 --out h"))
  assert "GB of memory" in line
  assert not ledger.path.exists()


@pytest.mark.slow
def test_too_few_rows_are_said_from_public_numbers(capsys, place):
  rows = np.random.default_rng(0).standard_normal((30, DIM)).astype("f4")
  write_rows(Path("few"), rows, np.arange(30) % 10, dataset="few")
  words = place("TRAIN --cache few --epsilon 1 --head lamb --out h")
  _, err = succeeds(capsys, *words)
  assert "warning: about 3 rows of each class" in err
