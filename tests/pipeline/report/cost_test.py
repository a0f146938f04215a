import contextlib
import dataclasses
import hashlib
import shutil
from typing import Any

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.pipeline.report import findings
from oneshot_dp.pipeline.report.cost import cost_of
from oneshot_dp.pipeline.report.findings import look
from oneshot_dp.pipeline.report.run_record import read_run
from oneshot_dp.pipeline.runs.compare import run_compare
from oneshot_dp.pipeline.runs.run import Run
from tests.pipeline.report.conftest import edited, swept, write_hard
from tests.pipeline.sample_caches import CLASSES


@contextlib.contextmanager
def rewritten(run):
  with edited(run, "results.json") as results:
    yield results
  # Whoever edits one file of a run may edit the other.
  with edited(run) as config:
    written = (run / "results.json").read_bytes()
    config["results_sha256"] = hashlib.sha256(written).hexdigest()


class TestResultsThatWereChanged:
  @pytest.mark.slow
  def test_any_field_of_any_head(self, sweep):
    run = read_run(sweep.run)
    cost_of(run)
    first, *others = run.rows
    changes: dict[str, Any] = {
      "epsilon": 0.25,
      "delta": 1e-9,
      "noise_multiplier": 50.0,
      "noise_source": "a better one",
      "private": False,
      "head": "lamb",
      "release": "independent",
      "num_examples": 10**6,
      "composed_epsilon": 0.1,
    }
    for field, value in changes.items():
      changed = dataclasses.replace(first, **{field: value})
      with pytest.raises(InputError, match=f"{field} (of heads/|is 0.1)"):
        cost_of(dataclasses.replace(run, rows=(*others, changed)))

  def test_what_everything_cost(self, sweep, tmp_path):
    run = sweep.copied(tmp_path / "run")
    with rewritten(run) as results:
      results["composed_epsilon"] = 0.1
    with pytest.raises(InputError) as refusal:
      look(run, ledger_dir=sweep.folder / "ledgers")
    assert "composed_epsilon is 0.1, and the" in str(refusal.value)
    assert "does not say what the receipts say; run it" in str(refusal.value)
    assert "\n" not in str(refusal.value)

  def test_noise_from_a_seed_that_is_said_to_be_private(self, sweep, tmp_path):
    run = swept(
      tmp_path,
      privacy=PrivacyConfig(delta=1e-5, noise_seed=3),
      baseline=False,
      num_draws=1,
      epsilons=(2.0,),
    )
    ledgers = tmp_path / "ledgers"
    assert look(run, ledger_dir=ledgers).run.noisy
    with rewritten(run) as results:
      for head in results["heads"]:
        head.update(private=True, noise_source="os.urandom")
    # One was charged for it, and one for another run.
    for place in (ledgers, sweep.folder / "ledgers"):
      with pytest.raises(InputError, match="not say what the receipts say"):
        look(run, ledger_dir=place)

  def test_a_receipt_that_lacks_something(self, sweep, tmp_path):
    run = sweep.copied(tmp_path / "run")
    with edited(run, "heads/epsilon-8-draw-1/receipt.json") as receipt:
      del receipt["composition"]
    with pytest.raises(InputError, match="damaged"):
      look(run, ledger_dir=sweep.folder / "ledgers")


@pytest.mark.slow
def test_all_releases_of_a_comparison_are_composed(
  sweep, tmp_path, monkeypatch
):
  """Two heads of one release, and one that has its own, of equal noise."""
  run_compare(
    Run(
      train=open_cache(sweep.folder / "train"),
      evaluation=open_cache(sweep.folder / "test"),
      out=tmp_path / "run",
      ledger_dir=tmp_path / "ledgers",
    ),
    (2.0,),
    PrivacyConfig(delta=1e-5),
    methods=("momentum", "lamb", "least-squares"),
  )
  run = read_run(tmp_path / "run")
  cost = cost_of(run)
  assert cost.heads == pytest.approx(run.rows[0].composed_epsilon, rel=1e-12)
  assert cost.heads > 2.1
  assert len(cost.entries) == 2
  # Where a head has no sums to show, those of another method are shown.
  known = findings.sums_of
  monkeypatch.setattr(
    findings,
    "sums_of",
    lambda receipt: (
      "none" if "class_sum_share" in receipt["mechanism"] else known(receipt)
    ),
  )
  places = {"ledger_dir": tmp_path / "ledgers"}
  found = look(tmp_path / "run", head="least-squares", **places)
  assert not isinstance(found.compared, str)
  assert found.compared.method == "momentum"


def test_accuracies_on_rows_of_other_data_cost_this_one_nothing(
  sweep, tmp_path
):
  shutil.copytree(sweep.folder / "train", tmp_path / "train")
  counts = (20,) * CLASSES
  write_hard(tmp_path / "test", counts, split="test", dataset="others")
  run = swept(
    tmp_path, private_eval=4.0, baseline=False, num_draws=1, epsilons=(2.0,)
  )
  found = look(run, ledger_dir=tmp_path / "ledgers")
  assert found.cost.with_accuracies is None
  assert len(found.cost.entries) == 1
  assert not isinstance(found.budget, str)
  assert found.budget.has_this_run


def test_runs_of_before_are_read(sweep, tmp_path):
  run = shutil.copytree(sweep.run, tmp_path / "run")
  for name in ("results.json", "config.json"):
    text = (run / name).read_text()
    today = text.replace('"draw":', '"seed":').replace("num_draws", "num_seeds")
    assert today != text
    (run / name).write_text(today)
  with edited(run) as config:
    del config["results_sha256"]
  before, after = read_run(run), read_run(sweep.run)
  assert before.rows == after.rows
  del after.config["results_sha256"]
  assert before.config == after.config
