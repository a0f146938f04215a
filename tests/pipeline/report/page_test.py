import html
import json
import math
import os
import re
import shutil
import stat

import pytest

from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.report.page import _at_most, write_report
from oneshot_dp.pipeline.report.results import HeadRow, files_of, head_name
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_heads import sample_info, trained_head

NAMES = ("cat", "a dog of a very long breed indeed", "<b>rat</b>")
PUBLIC = {
  "labels": "public",
  "dataset": "pets",
  "split": "test",
  "rows": "",
  "num_examples": 1000,
}
NOISY = PUBLIC | {
  "labels": "private",
  "private": True,
  "epsilon": 2.0,
  "delta": 1e-5,
  "accuracy_sd": 0.0123,
}


def write_run(folder, *, evaluation=PUBLIC, seed=None, baseline=True, draws=2):
  """As `sweep` leaves it, but for the ledger."""
  rows = []
  plans = [
    (epsilon, draw) for epsilon in (0.5, 1.0, 8.0) for draw in range(draws)
  ]
  plans += [(math.inf, 0)] * baseline
  source = NoiseSource(seed=seed)
  for epsilon, draw in plans:
    noisy = math.isfinite(epsilon)
    trained = trained_head(
      epsilon if noisy else 1.0, source=source, noise=noisy
    )
    path = f"heads/{head_name('auto', epsilon, draw)}"
    write_head(folder / path, trained, sample_info(class_names=NAMES))
    exact = evaluation["labels"] == "public"
    rows.append(
      HeadRow(
        path=path,
        head="auto",
        epsilon=epsilon,
        delta=1e-5,
        draw=draw,
        private=trained.private,
        noise_source=trained.noise_source,
        noise_multiplier=1.0 if noisy else 0.0,
        top1=0.9004 - 0.05 / epsilon + 0.001 * draw,
        top5=1.0 if exact else None,
        balanced=0.85 if exact else None,
        recall=[0.95, 0.5, None] if exact else None,
      )
    )
  facts = {
    "dataset": "pets",
    "epsilon": 8.0 if seed is None else None,
    "test_counts": [600, 400, 0] if evaluation["labels"] == "public" else None,
    "evaluation": evaluation,
  }
  for name, content in files_of(rows, facts).items():
    (folder / name).write_bytes(content)
  return folder


def text_of(page):
  """What is read on it."""
  body = page.read_text("utf-8").partition("<body>")[2]
  return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture(scope="module")
def page(tmp_path_factory):
  """That of a run as it usually is; to be read alone."""
  return write_report(write_run(tmp_path_factory.mktemp("run")))


@pytest.fixture
def run(page, tmp_path):
  """A copy of the same run, to be spoilt."""
  shutil.copytree(page.parent, tmp_path / "run")
  (tmp_path / "run" / "report.html").unlink()
  return tmp_path / "run"


def test_a_bound_of_guesses_is_rounded_up_and_below_1_where_it_is():
  for epsilon, said in (1, "73.2"), (8, "99.97"), (12, "99.9994"):
    assert _at_most(1 / (1 + math.exp(-epsilon))) == f"{said}\xa0%"


def test_the_page_says_promise_cost_accuracy_and_limits(page, run, capsys):
  said, _ = succeeds(capsys, "report", run)
  assert said.strip() == str(run / "report.html")
  assert (run / "report.html").read_bytes() == page.read_bytes()
  text = text_of(page)
  for words in (
    "At ε = 1 this classifier names 85.1 % of 1,000 test images right",
    "one example or nothing in its place (REPLACE_SPECIAL)",
    "ε = 8 at δ = 1e-05 together",
    "is right at most 73.2 % of the time",
    "points, NOT PRIVATE",  # against the baseline
    "85.09 ± 0.07",  # over draws
    "82.7–87.3",  # of 1,000 test images, by Clopper and Pearson
    'oneshot_dp.load_head("heads/auto-epsilon-1-draw-0")',
    "oneshot-dp export",
    "What is not protected",
    "exact accuracies on this page give them away",
  ):
    assert words in text, words


def test_contents_lead_somewhere_and_nothing_is_loaded(page):
  text = page.read_text("utf-8")
  links = re.findall(r'href="#([^"]+)"', text)
  assert len(links) >= 6
  assert all(f'id="{link}"' in text for link in links)
  assert "<script" not in text
  assert re.findall(r'(?:src|href)="(?!#|data:,)', text) == []
  assert "http" not in text.partition("<body>")[2]
  assert text.count("<svg") == 2 + 2  # wide and narrow, and bars of two classes
  # Names are text, and no markup.
  assert "<b>rat</b>" not in text
  assert "&lt;b&gt;rat&lt;/b&gt;" in text


def test_classes_are_listed_the_weakest_first_and_those_without_rows_last(page):
  text = text_of(page).partition("Class by class")[2]
  places = [text.index(name) for name in (NAMES[1], NAMES[0], NAMES[2])]
  assert places == sorted(places)
  assert "400 50.0 %" in text


def test_noisy_accuracies_say_so_and_what_they_cost(tmp_path):
  text = text_of(
    write_report(write_run(tmp_path, evaluation=NOISY, baseline=False))
  )
  assert "about 85.1 %" in text
  assert "(a noisy count)" in text
  assert "standard deviation of 1.23 points" in text
  assert "cost the test data ε = 2 at δ = 1e-05" in text
  assert "Class by class" not in text
  # 82.7 to 87.3 by the size of the test set, and 1.96 times 1.23 at both ends.
  assert "80.3–89.7" in text


def test_a_head_has_a_page_of_its_own(tmp_path, capsys):
  head = tmp_path / "head"
  write_head(head, trained_head(2.0), sample_info(unit="user"))
  succeeds(capsys, "report", head)
  text = text_of(head / "report.html")
  assert "This classifier is differentially private with ε = 2" in text
  assert "all examples of one user together" in text
  assert "Accuracy" not in text
  assert "a person with two images" not in text
  write_head(tmp_path / "tiny", trained_head(1e-300), sample_info())
  assert "private with ε = 0 " in text_of(write_report(tmp_path / "tiny"))


def test_what_is_not_private_is_marked_and_the_owners_alone(page, tmp_path):
  assert stat.S_IMODE(page.stat().st_mode) == 0o600  # it has a baseline
  assert "without noise (NOT PRIVATE)" in page.read_text("utf-8")
  page = write_report(write_run(tmp_path / "b", seed=3, baseline=False))
  assert stat.S_IMODE(page.stat().st_mode) == 0o600
  text = text_of(page)
  assert "NOT PRIVATE : this classifier protects nobody" in text.replace(
    "PRIVATE:", "PRIVATE :"
  )
  assert "No ε on this page is a promise" in text
  page = write_report(write_run(tmp_path / "c", baseline=False))
  results = tmp_path / "c" / "results.json"
  assert page.stat().st_mode == results.stat().st_mode
  assert "NOT PRIVATE" not in text_of(page)
  head = tmp_path / "d"
  write_head(head, trained_head(noise=False), sample_info())
  assert "protects nobody" in text_of(write_report(head))


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("path", "../head"),
    ("epsilon", 0.1),
    ("delta", 1e-9),
    ("private", False),
    ("noise_source", "me"),
    ("head", "lamb"),
    ("top1", "high"),
    ("top1", None),
  ],
)
def test_results_that_receipts_do_not_bear_out_are_refused(
  run, capsys, name, value
):
  before = write_report(run).read_bytes()
  results = json.loads((run / "results.json").read_text())
  if name == "path":
    shutil.copytree(run / results["heads"][0]["path"], run.parent / "head")
  results["heads"][0][name] = value
  (run / "results.json").write_text(json.dumps(results))
  assert ("outside of" in fails(capsys, "report", run)) == (name == "path")
  for damaged in "", "{", "[]", "{}", '{"format": 1, "heads": []}', "\x00":
    (run / "results.json").write_text(damaged)
    assert "results.json is damaged" in fails(capsys, "report", run)
  assert (run / "report.html").read_bytes() == before  # the earlier one stays


def test_a_killed_run_leaves_nothing(page, run, capsys, monkeypatch):
  before = {*run.iterdir()}

  def stopped(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", stopped)
    fails(capsys, "report", run, status=130)
  assert {*run.iterdir()} == before
  (run / ".report.html.new").write_text("killed there by SIGKILL")
  succeeds(capsys, "report", run)
  assert {*run.iterdir()} == before | {run / "report.html"}
  assert (run / "report.html").read_bytes() == page.read_bytes()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_browser_shows_it_on_a_phone_and_on_a_desk(page):
  """Nothing sticks out but in what scrolls; no word of a table is broken."""
  from playwright.sync_api import sync_playwright

  with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=CHROMIUM,
      args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    )
    try:
      for width, shown, hidden in (
        (390, "narrow", "wide"),
        (1280, "wide", "narrow"),
      ):
        tab = browser.new_page(viewport={"width": width, "height": 800})
        complaints = []
        tab.on("console", lambda m, to=complaints: to.append(m.text))
        tab.on("request", lambda r, to=complaints: to.append(r.url))
        tab.goto(page.as_uri())
        assert complaints == [page.as_uri()]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator(f"svg.{shown}").is_visible()
        assert not tab.locator(f"svg.{hidden}").is_visible()
        # Letters of the picture are as large as they were drawn.
        scale = tab.evaluate(
          f"document.querySelector('svg.{shown}').getScreenCTM().a"
        )
        assert 0.9 < scale < 1.25
        assert tab.evaluate(_BROKEN_WORDS) == []
        tab.close()
    finally:
      browser.close()


_BROKEN_WORDS = """
() => [...document.querySelectorAll('.scroll th, .scroll td, dd, dt, h1')]
  .flatMap(cell => [...(function* texts(node) {
    for (const child of node.childNodes)
      if (child.nodeType === 3) yield child; else yield* texts(child);
  })(cell)])
  .flatMap(node => [...node.data.matchAll(/[A-Za-z0-9.]+/g)].map(word => {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const tops = [...range.getClientRects()].map(r => Math.round(r.top));
    return new Set(tops).size > 1 ? word[0] : null;
  })).filter(Boolean)
"""
