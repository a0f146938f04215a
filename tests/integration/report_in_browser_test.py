"""The page of `report`, in a real browser: Debian's Chromium, headless."""

import io
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.pipeline.report.report import write_report
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.runs.sweep import run_sweep
from tests.pipeline.sample_caches import write_clusters

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
  ),
]

NAMES = ("a <b>tag</b>", "an extraordinarily_long_name_" * 3, "c", "d")
FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
]
# Of the text of every element, the least contrast that WCAG 2 calls enough (AA)
# is 4.5, and 3 where it is large.
TOO_FAINT = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = channels(color).slice(0, 3).map((c) => {
      c /= 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      const alpha = channels(color)[3];
      if (alpha === undefined || alpha === 1) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    const ink = luminance(getComputedStyle(node).color);
    const ground = luminance(paper(node));
    const [high, low] = ink > ground ? [ink, ground] : [ground, ink];
    if ((high + 0.05) / (low + 0.05) < 4.5)
      faint.push(walker.currentNode.data.trim());
  }
  return faint;
}"""
IMAGES = """() => [...document.images].map((image) => ({
  width: image.naturalWidth, shown: image.clientWidth, source: image.currentSrc
}))"""


@pytest.fixture(scope="module")
def page_path(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("page")
  write_clusters(folder / "train", d=3, class_names=NAMES)
  write_clusters(
    folder / "test", (20, 20, 20, 20), d=3, split="test", class_names=NAMES
  )
  run_sweep(
    Run(
      train=open_cache(folder / "train"),
      evaluation=open_cache(folder / "test"),
      out=folder / "run",
      num_draws=2,
      baseline=True,
      ledger_dir=folder / "ledgers",
    ),
    (0.5, 2.0, 8.0),
    PrivacyConfig(delta=1e-5),
    HeadConfig(head="momentum"),
  )
  return write_report(folder / "run", ledger_dir=folder / "ledgers").page


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
  with playwright.sync_playwright() as tool:
    # With a profile of its own, which goes with it.
    opened = tool.chromium.launch(
      executable_path=CHROMIUM, headless=True, args=FLAGS
    )
    yield opened
    opened.close()


class Opened:
  """The page, opened, and all that the browser said meanwhile."""

  def __init__(self, browser, path: pathlib.Path, **look):
    self.complaints: list[str] = []
    self.requests: list[str] = []
    self.page = browser.new_context(offline=True, **look).new_page()
    self.page.on("console", lambda said: self.complaints.append(said.text))
    self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
    self.page.on("request", lambda asked: self.requests.append(asked.url))
    self.page.goto(path.as_uri(), wait_until="load")

  def color(self, of: str) -> str:
    return self.page.evaluate(f"getComputedStyle(document.body).{of}")

  def overflow(self) -> int:
    return self.page.evaluate(
      "document.documentElement.scrollWidth - window.innerWidth"
    )


LOOKS = {
  "light": {
    "viewport": {"width": 1200, "height": 900},
    "color_scheme": "light",
  },
  "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
  "phone": {"viewport": {"width": 375, "height": 700}, "color_scheme": "light"},
  "dark phone": {
    "viewport": {"width": 375, "height": 700},
    "color_scheme": "dark",
  },
}


@pytest.fixture(scope="module")
def opened(browser, page_path) -> dict[str, Opened]:
  return {
    name: Opened(browser, page_path, **look) for name, look in LOOKS.items()
  }


@pytest.mark.parametrize("look", LOOKS)
def test_it_renders_without_complaints_and_asks_for_nothing(
  opened, page_path, look
):
  seen = opened[look]
  assert "this classifier names" in seen.page.inner_text("h1")
  assert "a <b>tag</b>" in seen.page.content().replace("&lt;", "<").replace(
    "&gt;", ">"
  )
  assert seen.page.locator("b").count() == 0
  assert seen.complaints == []
  loaded = [url for url in seen.requests if not url.startswith("data:")]
  assert loaded == [page_path.as_uri()]


@pytest.mark.parametrize("look", LOOKS)
def test_all_figures_are_there_and_fit(opened, look):
  images = opened[look].page.evaluate(IMAGES)
  assert len(images) == 4
  for image in images:
    assert image["width"] > 200
    assert 200 < image["shown"] <= LOOKS[look]["viewport"]["width"]


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_sticks_out_at_the_side(opened, look):
  assert opened[look].overflow() <= 0


@pytest.mark.parametrize("look", LOOKS)
def test_all_text_can_be_read(opened, look):
  page = opened[look].page
  page.evaluate("document.querySelectorAll('details').forEach(d => d.open = 1)")
  assert page.evaluate(TOO_FAINT) == []


def test_each_look_has_figures_of_its_own(opened):
  sources = [
    [image["source"] for image in seen.page.evaluate(IMAGES)]
    for seen in opened.values()
  ]
  for figure in zip(*sources, strict=True):
    assert len(set(figure)) == len(LOOKS)


def test_the_dark_scheme_is_dark(opened):
  assert opened["light"].color("backgroundColor") == "rgb(255, 255, 255)"
  red, green, blue = (
    int(channel)
    for channel in opened["dark"]
    .color("backgroundColor")
    .removeprefix("rgb(")
    .removesuffix(")")
    .split(",")
  )
  assert max(red, green, blue) < 48
  assert opened["light"].color("color") != opened["dark"].color("color")


def test_figures_are_drawn(opened):
  """A picture that is all of one colour shows nothing."""
  page = opened["dark"].page
  for i in range(4):
    shot = page.locator("img").nth(i).screenshot()
    pixels = _pixels(shot)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_it_prints(opened, tmp_path):
  """On paper it is dark on light, whatever the screen, with all tables open."""
  page = opened["dark"].page
  page.emulate_media(media="print")
  try:
    assert opened["dark"].color("backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(TOO_FAINT) == []
    page.wait_for_function("[...document.images].every(i => i.complete)")
    light = [i["source"] for i in opened["light"].page.evaluate(IMAGES)]
    assert [i["source"] for i in page.evaluate(IMAGES)] == light
  finally:
    page.emulate_media(media="screen")
  printed = page.pdf(path=tmp_path / "page.pdf", format="A4")
  assert printed.startswith(b"%PDF-")
  assert len(printed) > 50_000


def _pixels(png: bytes) -> np.ndarray:
  with Image.open(io.BytesIO(png)) as image:
    return np.asarray(image.convert("RGB"))
