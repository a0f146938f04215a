import csv
import json
import math
import re
import shutil
import statistics
import sys

import pytest
from PIL import Image

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.report.drawings import PICTURES
from oneshot_dp.pipeline.report.findings import look
from oneshot_dp.pipeline.report.report import write_report
from oneshot_dp.pipeline.training.train_heads import charged_rows
from tests.extract.caches import digest
from tests.pipeline.report.conftest import (
  HOSTILE,
  NAMES,
  edited,
  reported,
  swept,
  write_hard,
)


class TestThePage:
  def test_it_is_one_file_with_figures_beside_it(self, sweep):
    assert sweep.written.page == sweep.run / "report.html"
    assert [path.name for path in sweep.written.figures] == [
      f"{name}.{suffix}"
      for name in sorted(PICTURES)
      for suffix in ("pdf", "png")
    ]
    for path in sweep.written.figures:
      assert path.parent == sweep.run / "report"
      if path.suffix == ".png":
        with Image.open(path) as image:
          assert len(image.convert("RGB").getcolors(10**7) or []) > 10
      else:
        assert path.read_bytes().startswith(b"%PDF-")
    assert sweep.written.notes == ()
    assert len(sweep.page.alts) == 4
    assert all(alt and len(alt) > 30 for alt in sweep.page.alts)
    assert len(set(sweep.page.ids)) == len(sweep.page.ids)

  def test_accuracies_are_those_of_the_table(self, sweep):
    with (sweep.run / "results.csv").open(newline="") as file:
      rows = list(csv.DictReader(file))
    lines = sweep.page.table("head")
    assert len(lines) == 4
    headline, of_head = "", 0.0
    for line in lines:
      epsilon = math.inf if line[1] == "∞" else float(line[1])
      group = [row for row in rows if float(row["epsilon"]) == epsilon]
      top1, balanced = (
        [100 * float(row[score]) for row in group]
        for score in ("top1", "balanced")
      )
      # Many a mean of two is a tie: of 100 times each it may round otherwise.
      assert line[3] == f"{statistics.mean(top1):.2f} %"
      assert line[6] == f"{statistics.mean(balanced):.2f} %"
      assert line[7] == str(len(top1))
      if len(top1) > 1:
        assert line[4] == f"{statistics.stdev(top1):.2f}"
      if epsilon == 2:  # the middle one
        of_head = statistics.mean(top1)
        headline = (
          f"At ε = 2 this classifier names {of_head:.1f} % of 80 test images"
          f" right ({statistics.mean(balanced):.1f} % as a mean over classes);"
          " the same method without noise "
        )
    (ceiling,) = (float(r["top1"]) for r in rows if r["epsilon"] == "inf")
    assert f"{headline}{100 * ceiling:.1f} %." in sweep.page.text
    # Every class has as many test images.
    lines = sweep.page.table("class")
    assert {line[0] for line in lines} == set(NAMES)
    shares = [float(line[2].removesuffix(" %")) for line in lines]
    assert statistics.mean(shares) == pytest.approx(of_head, abs=0.06)

  def test_what_it_cost_is_what_the_ledger_has(self, sweep):
    results = json.loads((sweep.run / "results.json").read_text())
    composed = printable(results["composed_epsilon"])
    assert f"All 6 heads of this run together come to ε = {composed}" in (
      sweep.page.text
    )
    assert f"ε = {composed} is the odometer's reading for" in sweep.page.text
    what = [line[1] for line in sweep.page.table("date")]
    assert what == [
      "baseline of split train (this run)",
      "release of split train: ε 0.5, 2, 8, 2 draws each (this run)",
    ]

  def test_it_says_who_is_not_protected_and_from_whom(self, sweep):
    receipt = json.loads(
      (sweep.run / "heads/epsilon-2-draw-0/receipt.json").read_text()
    )
    for line in receipt["assumptions"] + receipt["not_protected"]:
      assert line in sweep.page.text
    for fact in (
      receipt["head_sha256"],
      receipt["composition"]["ledger_entry"],
      receipt["data"]["cache_fingerprint"],
    ):
      assert fact in sweep.page.text

  @pytest.mark.slow
  def test_run_again_without_the_private_rows_it_is_the_same(self, sweep):
    page = sweep.written.page.read_bytes()
    figures = [path.read_bytes() for path in sweep.written.figures]
    mine = sweep.run / "report" / "mine.txt"
    mine.write_text("kept")
    sweep.written.figures[0].write_bytes(b"old")
    (sweep.folder / "train").rename(sweep.folder / "away")
    try:
      again = reported(sweep.run, drawn=True).written
    finally:
      (sweep.folder / "away").rename(sweep.folder / "train")
    assert again == sweep.written
    assert again.page.read_bytes() == page
    assert [path.read_bytes() for path in again.figures] == figures
    assert mine.read_text() == "kept"
    mine.unlink()


class TestNothingLeavesAndNothingLoads:
  def test_nothing_is_loaded_from_anywhere(self, sweep):
    html = sweep.written.page.read_text()
    assert "script" not in sweep.page.tags
    for link in sweep.page.links:
      assert link.startswith(("#", "data:"))
    assert "default-src 'none'; img-src data:" in html
    assert not re.search(r"url\(|@import", html)
    for svg in sweep.page.svgs():
      assert "<script" not in svg
      for link in re.findall(r'href="([^"]*)"', svg):
        assert link.startswith("#")

  def test_names_of_classes_are_text(self, sweep):
    html = sweep.written.page.read_text()
    for name in HOSTILE[:2]:
      assert name in sweep.page.text
      assert name not in html
    # Cut to what fits a picture.
    assert sum("&lt;script&gt;alert" in svg for svg in sweep.page.svgs()) == 12
    assert any("$x_1$ &amp; 猫" in svg for svg in sweep.page.svgs())

  def test_private_evaluation_rows_are_not_read_either(self, tmp_path):
    run = swept(tmp_path, private_eval=4.0, baseline=False)
    first = reported(run)
    text = first.page.text
    assert "the labels that the heads were scored on are private" in text
    assert "noisy counts, epsilon=4 at delta=1e-05" in text
    assert "The accuracies cost a budget of their own" in text
    assert [path.stem for path in first.written.figures] == ["accuracy"] * 2
    assert len(first.written.notes) == 2
    assert not any(table[0][0] == "class" for table in first.page.tables)
    page = first.written.page.read_bytes()
    shutil.rmtree(tmp_path / "test")
    assert reported(run).written.page.read_bytes() == page
    assert "NOT PRIVATE" not in text


class TestNotPrivate:
  def test_the_head_without_noise_is_marked(self, sweep):
    marked = [r[0] for r in sweep.page.table("head") if "NOT PRIVATE" in r[0]]
    assert marked == ["momentum NOT PRIVATE"]
    assert "which no ε covers: NOT PRIVATE" in sweep.page.text
    assert sweep.page.table("date")[0][2] == "NOT PRIVATE"

  def test_noise_from_a_seed_is_marked_everywhere(self, tmp_path):
    run = swept(
      tmp_path,
      privacy=PrivacyConfig(delta=1e-5, noise_seed=3),
      baseline=False,
      private_eval=4.0,  # it has but one picture
      num_draws=1,
      epsilons=(2.0,),
    )
    first = reported(run, drawn=True)
    text = first.page.text
    assert "NOT PRIVATE: this classifier protects nobody" in text
    assert "differentially private" not in text
    for line in first.page.table("head") + first.page.table("who sees"):
      assert line[0].endswith("NOT PRIVATE")
    svgs = first.page.svgs()
    assert len(svgs) == 4
    for svg in svgs:
      assert "NOT PRIVATE: the noise comes from a seed" in svg

  def test_a_head_that_was_changed_is_not_to_be_trusted(self, sweep, tmp_path):
    run = sweep.copied(tmp_path / "run")
    path = run / "heads/epsilon-8-draw-1/receipt.json"
    path.write_text(
      path.read_text().replace('"epsilon": 8.0', '"epsilon": 7.9')
    )
    ledgers = sweep.folder / "ledgers"
    text = reported(run, epsilon=8.0, ledger_dir=ledgers).page.text
    assert "At ε = 8 this classifier" in text
    assert "Class by class, at ε = 8" in text
    assert "Do not trust this head" in text
    assert "Do not trust this head" not in sweep.page.text


class TestWhatIsMissing:
  def test_the_evaluation_cache_and_the_ledger(self, sweep, tmp_path):
    run = sweep.copied(tmp_path / "run")
    with edited(run) as config:
      config["run"]["eval_cache"] = str(tmp_path / "gone")
    found = reported(run, ledger_dir=tmp_path / "none")
    no_ledger, *no_rows = found.written.notes
    assert no_ledger == (
      f"no budget: there is no ledger of 'pets' in {tmp_path / 'none'}"
    )
    assert "no ledger at hand" in found.page.text
    assert len(no_rows) == 2
    for note in no_rows:
      assert f"{tmp_path / 'gone'}" in note
    # Pictures of before are gone, as the page no longer shows them.
    assert {path.stem for path in (run / "report").iterdir()} == {"accuracy"}
    again = look(
      run, eval_cache=sweep.folder / "test", ledger_dir=sweep.folder / "ledgers"
    )
    assert again.notes == ()

  def test_rows_that_were_charged_as_private_since(self, sweep, tmp_path):
    """Without their number, which is for their holder."""
    run = sweep.copied(tmp_path / "run")
    ledgers = shutil.copytree(sweep.folder / "ledgers", tmp_path / "ledgers")
    rows = open_cache(sweep.folder / "test")
    release = ReleasePlan(epsilons=(1.0,), delta=1e-5)
    charge = Charge.of_plan(release, NoiseSource(), **charged_rows(rows))
    Ledger("others", ledgers).charge(charge)
    found = reported(run)
    notes = found.written.notes
    assert len(notes) == 2
    for note in notes:
      assert "may be private now, by a ledger of" in note
      said = note.replace(str(rows.path), "").replace(str(ledgers), "")
      assert not re.search("[0-9]", said)
    assert not any(table[0][0] == "class" for table in found.page.tables)
    assert {path.stem for path in (run / "report").iterdir()} == {"accuracy"}

  def test_rows_that_were_not_scored(self, sweep, tmp_path):
    """They have the name and size of those that were, but other labels."""
    write_hard(tmp_path / "test", (0, 0, 0, 80), split="test")
    found = look(sweep.run, eval_cache=tmp_path / "test")
    assert "does not hold the rows that were scored" in str(found.answers)
    assert isinstance(found.compared, str)

  def test_a_ledger_without_the_charge(self, sweep, tmp_path):
    swept(tmp_path, baseline=False)
    found = look(sweep.run, ledger_dir=tmp_path / "ledgers")
    assert not isinstance(found.budget, str)
    assert not found.budget.has_this_run
    assert found.checks[0].problems


class TestRefusals:
  @pytest.mark.parametrize(
    ("option", "value", "message"),
    [
      ("epsilon", 3.0, "epsilon=3.0 is not among .* one of 0.5, 2.0, 8.0"),
      ("head", "adam", "head='adam' is not among .* one of momentum"),
      ("cache", "test", "give the cache that it had"),
      ("eval_cache", "train", "give the cache that it had"),
      ("eval_cache", "none", "none"),
    ],
  )
  def test_what_the_run_did_not_have(self, sweep, option, value, message):
    if "cache" in option:
      value = sweep.folder / value
    with pytest.raises(InputError, match=message):
      write_report(sweep.run, **{option: value})

  def test_a_folder_of_something_else(self, sweep, tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
      with pytest.raises(InputError, match=r"holds no results; give the"):
        write_report(folder)
    run = sweep.copied(tmp_path / "run")
    (run / "config.json").write_text("{}")
    with pytest.raises(InputError, match="not written by this version's"):
      write_report(run)

  def test_damaged_results(self, sweep, tmp_path):
    run = sweep.copied(tmp_path / "run")
    for name in ("config.json", "results.json"):
      before = (run / name).read_text()
      for content in ("{", "[]", '{"run": {}, "heads": [3]}'):
        (run / name).write_text(content)
        with pytest.raises(InputError, match="damaged"):
          write_report(run)
      (run / name).write_text(before)

  @pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
  def test_what_is_not_installed(self, sweep, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError) as refusal:
      write_report(sweep.run)
    assert str(refusal.value) == (
      f"reports need {package}, which is not installed: pip install"
      " 'oneshot-dp[plots]'"
    )

  def test_a_place_that_cannot_be_written(self, sweep, tmp_path):
    run = sweep.copied(tmp_path / "run")
    shutil.rmtree(run / "report")
    (run / "report").write_text("a file in the way")
    before = digest(run)
    with pytest.raises(RunError, match="cannot be written"):
      reported(run, ledger_dir=sweep.folder / "ledgers")
    assert digest(run) == before
