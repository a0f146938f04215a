"""The page about a run or a head says what it must, and nothing more."""

import html
import math
import os
import re
import shutil
import stat

import numpy as np
import pytest

from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.report.page import _upper_bound, write_report
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.report.sample_runs import NAMES, NOISY, write_run
from tests.pipeline.sample_heads import sample_info, trained_head

UNLABELED_SHA256 = "0a".zfill(64)


def text_of(page):
  """What is read on a page."""
  body = page.read_text("utf-8").partition("<body>")[2]
  return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def section_of(page, name):
  """What is read in one section of a page."""
  text = page.read_text("utf-8")
  (section,) = re.findall(
    rf'<section aria-labelledby="{name}">.*?</section>', text, re.DOTALL
  )
  return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", section)).split())


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


@pytest.mark.parametrize(
  ("epsilon", "shown"),
  [(1, "73.11"), (8, "99.97"), (12, "99.9994"), (20, "99.9999998")],
)
def test_a_bound_of_guesses_is_rounded_up_and_below_1(epsilon, shown):
  assert _upper_bound(1 / (1 + math.exp(-epsilon))) == f"{shown}\xa0%"


def test_page_adds_delta_to_the_bound(page):
  # δ is not the probability that the odds change by more than e^ε: for the
  # Gaussian mechanism that is larger, 16 δ at ε = 1 and δ = 1e-5.
  promise = section_of(page, "promise")

  assert "at most e ε times as likely" in promise
  assert "plus δ = 1e-05" in promise
  assert "probability" not in promise


@pytest.mark.slow
def test_report_writes_the_page_and_prints_its_path(page, run, capsys):
  out, _ = succeeds(capsys, "report", run)

  assert out.strip() == str(run / "report.html")
  assert (run / "report.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize(
  ("self_trained", "words"),
  [
    (True, "This head is the second one."),
    (False, "This head is the first one: the second was not better here."),
  ],
)
def test_the_page_says_that_public_unlabeled_images_were_used(
  self_trained, words, tmp_path
):
  trained = trained_head(
    options={"unlabeled_sha256": UNLABELED_SHA256, "self_trained": self_trained}
  )
  write_head(tmp_path / "head", trained, sample_info())

  page = write_report(tmp_path / "head")

  promise = section_of(page, "promise")
  assert "Public images without labels were used." in promise
  assert words in promise
  assert UNLABELED_SHA256 in section_of(page, "receipt")


@pytest.mark.parametrize(
  "words",
  [
    "At ε = 1 this classifier recognizes 85.1 % of 1,000 test images",
    "Its ε is the middle one of the 3 that were tried.",
    "not chosen for its accuracy, because the most accurate head is usually",
    "one example is there, or nothing in its place (REPLACE_SPECIAL)",
    "together cost ε = 12.257 at δ = 1e-05",
    "is right at most 73.11 % of the time",
    "points, NOT PRIVATE",  # the difference to the baseline
    "85.09 ± 0.07",  # over draws
    "82.7–87.3",  # of 1,000 test images, by Clopper and Pearson
    'oneshot_dp.load_head("heads/auto-epsilon-1-draw-0")',
    "oneshot-dp export",
    "What is not protected",
    "exact accuracies on this page reveal them",
  ],
)
def test_the_page_says_promise_cost_accuracy_and_limits(page, words):
  assert words in text_of(page)


def test_contents_lead_to_sections_of_the_page(page):
  text = page.read_text("utf-8")

  links = re.findall(r'href="#([^"]+)"', text)

  assert len(links) >= 6
  assert all(f'id="{link}"' in text for link in links)


def test_the_page_loads_nothing_and_runs_nothing(page):
  text = page.read_text("utf-8")

  assert "<script" not in text
  assert re.findall(r'(?:src|href)="(?!#|data:,)', text) == []
  assert "http" not in text.partition("<body>")[2]


def test_the_page_has_charts_for_desk_and_phone_and_a_bar_for_each_class(page):
  assert page.read_text("utf-8").count("<svg") == 2 + 2  # a class has no rows


def test_names_are_text_and_no_markup(page):
  text = page.read_text("utf-8")

  assert "<b>rat</b>" not in text
  assert "&lt;b&gt;rat&lt;/b&gt;" in text


def test_classes_are_listed_the_weakest_first(page):
  text = section_of(page, "classes")

  places = [text.index(name) for name in (NAMES[1], NAMES[0], NAMES[2])]
  assert places == sorted(places)
  assert "400 50.0 %" in text


def test_a_class_without_test_images_says_so(page):
  assert f"{NAMES[2]} 0 – no test images" in section_of(page, "classes")
  assert "1 of 3 classes have no test images" in section_of(page, "classes")
  assert "1 of 3 have none and do not count" in section_of(page, "accuracy")


@pytest.mark.slow
def test_empty_classes_are_counted_where_they_are_not_listed(tmp_path):
  names = tuple(f"class {i}" for i in range(100))
  page = write_report(
    write_run(
      tmp_path,
      class_names=names,
      recall=(0.5,) * 98 + (None,) * 2,
      test_counts=(10,) * 98 + (0,) * 2,
    )
  )

  assert "30 of 100" in section_of(page, "classes")
  assert "2 of 100 classes have no test images" in section_of(page, "classes")


@pytest.mark.slow
@pytest.mark.parametrize(("num_classes", "is_shown"), [(5, False), (6, True)])
def test_top5_is_shown_of_six_classes_or_more(tmp_path, num_classes, is_shown):
  page = write_report(
    write_run(
      tmp_path,
      class_names=tuple(f"class {i}" for i in range(num_classes)),
      recall=(0.5,) * num_classes,
      test_counts=(10,) * num_classes,
    )
  )

  assert ("top-5" in text_of(page)) == is_shown


@pytest.mark.slow
def test_a_run_without_a_baseline_has_no_tile_for_one(tmp_path):
  page = write_report(write_run(tmp_path, baseline=False))

  assert "baseline" not in text_of(page)


@pytest.mark.slow
def test_a_run_of_one_head_does_not_explain_a_choice(tmp_path):
  page = write_report(write_run(tmp_path, epsilons=(1.0,), draws=1))

  assert "This page is about one head of the run" not in text_of(page)


@pytest.mark.slow
def test_a_page_of_few_classes_has_their_confusion_matrix(tmp_path):
  confusion = ((570, 30, 0), (200, 200, 0), (0, 0, 0))

  page = write_report(write_run(tmp_path, confusion=confusion))

  text = section_of(page, "confusion")
  assert f"{NAMES[0]} 570 30 0" in text
  assert f"{NAMES[1]} 200 200 0" in text
  assert f"{NAMES[2]} 0 0 0" in text


@pytest.mark.slow
def test_a_confusion_matrix_has_large_counts_in_full(tmp_path):
  confusion = ((123_457, 1, 0), (0, 400, 0), (0, 0, 0))
  page = write_report(write_run(tmp_path, draws=1, confusion=confusion))
  assert f"{NAMES[0]} 123457 1 0" in section_of(page, "confusion")


@pytest.mark.slow
def test_a_page_of_many_classes_lists_what_is_confused_most(tmp_path):
  names = tuple(f"class {i}" for i in range(13))
  confusion = np.diag([90] * 13)
  confusion[4, 7] = 25
  confusion[2, 1] = 10

  page = write_report(
    write_run(
      tmp_path,
      class_names=names,
      recall=(0.9,) * 13,
      test_counts=(100,) * 13,
      confusion=confusion.tolist(),
    )
  )

  text = section_of(page, "confusion")
  assert "class 4 class 7 25 21.7\xa0%" in text.replace(" %", "\xa0%")
  assert text.index("class 4 class 7") < text.index("class 2 class 1")


@pytest.mark.slow
def test_a_page_of_noisy_accuracies_has_no_confusion_matrix(tmp_path):
  run = write_run(tmp_path, evaluation=NOISY, confusion=((1, 0, 0),) * 3)

  assert "taken for what" not in text_of(write_report(run))


@pytest.mark.slow
@pytest.mark.parametrize(
  "words",
  [
    "about 85.1 %",
    "(a noisy count)",
    "standard deviation of 1.23 points",
    "cost the test data ε = 2 at δ = 1e-05",
    # 82.7 to 87.3 by the size of the test set, and 1.96 times 1.23 points.
    "80.3–89.7",
  ],
)
def test_noisy_accuracies_say_so_and_what_they_cost(tmp_path, words):
  run = write_run(tmp_path, evaluation=NOISY, baseline=False)

  assert words in text_of(write_report(run))


@pytest.mark.slow
def test_noisy_accuracies_have_no_column_of_top5(tmp_path):
  names = tuple(f"class {i}" for i in range(6))
  run = write_run(tmp_path, evaluation=NOISY, baseline=False, class_names=names)

  assert "top-5" not in text_of(write_report(run))


@pytest.mark.slow
def test_noisy_accuracies_have_no_table_of_classes(tmp_path):
  run = write_run(tmp_path, evaluation=NOISY, baseline=False)

  text = text_of(write_report(run))

  assert "Accuracy of each class" not in text
  assert "balanced" not in text


def test_a_head_has_a_page_of_its_own(tmp_path, capsys):
  write_head(tmp_path / "head", trained_head(2.0), sample_info(unit="user"))

  succeeds(capsys, "report", tmp_path / "head")

  text = text_of(tmp_path / "head" / "report.html")
  assert "This classifier is differentially private with ε = 2" in text
  assert "Trained on 300 private examples" in text
  assert "all examples of one user are protected together" in text
  assert "Accuracy" not in text
  assert "a person with two images" not in text


def test_a_page_of_imported_features_offers_a_cache_and_no_photographs(
  tmp_path,
):
  write_head(tmp_path / "head", trained_head(2.0), sample_info())

  text = section_of(write_report(tmp_path / "head"), "load")

  assert "On a cache of such embeddings" in text
  assert "predict . cache --out" in text


def test_a_page_of_images_offers_photographs(tmp_path):
  backbone = {"name": "vit_ti16", "preprocess": {"image_size": 224}}
  info = sample_info(backbone=backbone)
  write_head(tmp_path / "head", trained_head(2.0), info)

  text = section_of(write_report(tmp_path / "head"), "load")

  assert "predict . photos --out" in text


def test_a_head_of_a_part_names_the_part(tmp_path):
  from oneshot_dp.configs.parts import Part

  part = Part.parse("[:80%]")
  write_head(tmp_path / "head", trained_head(2.0), sample_info(), part)

  text = text_of(write_report(tmp_path / "head"))

  assert "split train (rows [:80%]) of pets" in text


def test_a_head_of_a_tiny_epsilon_has_a_page(tmp_path):
  write_head(tmp_path / "tiny", trained_head(1e-300), sample_info())

  assert "private with ε = 0 " in text_of(write_report(tmp_path / "tiny"))


def test_a_page_with_a_baseline_is_its_owners_alone(page):
  assert stat.S_IMODE(page.stat().st_mode) == 0o600
  assert "without noise (NOT PRIVATE)" in page.read_text("utf-8")


@pytest.mark.slow
def test_a_page_of_seeded_heads_promises_nothing(tmp_path):
  page = write_report(write_run(tmp_path, seed=3, baseline=False))

  assert stat.S_IMODE(page.stat().st_mode) == 0o600
  text = text_of(page)
  assert "NOT PRIVATE: this classifier protects nobody" in text
  assert "No ε on this page is a guarantee" in text


@pytest.mark.slow
def test_a_page_of_private_heads_is_for_who_may_read_the_results(tmp_path):
  page = write_report(write_run(tmp_path, baseline=False))

  results = tmp_path / "results.json"
  assert page.stat().st_mode == results.stat().st_mode
  assert "NOT PRIVATE" not in text_of(page)


def test_a_page_of_a_baseline_alone_says_that_it_protects_nobody(tmp_path):
  write_head(tmp_path / "head", trained_head(noise=False), sample_info())

  assert "protects nobody" in text_of(write_report(tmp_path / "head"))


@pytest.mark.slow
def test_report_interrupted_leaves_nothing(page, run, capsys, monkeypatch):
  before = {*run.iterdir()}

  def stopped(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", stopped)
    fails(capsys, "report", run, status=130)

  assert {*run.iterdir()} == before


@pytest.mark.slow
def test_report_after_a_kill_clears_what_it_left(page, run, capsys):
  before = {*run.iterdir()}
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
