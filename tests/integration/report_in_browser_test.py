"""The page of `report`, in a real browser: Debian's Chromium, headless."""

import io
import pathlib
import re
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from tests.pipeline.report.conftest import reported, swept
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
  for split, counts in (("train", (60, 50, 40, 30)), ("test", (20,) * 4)):
    write_clusters(folder / split, counts, d=3, split=split, class_names=NAMES)
  return reported(swept(folder), drawn=True).written.page


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


WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 375, "height": 700}
LOOKS = {
  "light": {"viewport": WIDE, "color_scheme": "light"},
  "dark": {"viewport": WIDE, "color_scheme": "dark"},
  "phone": {"viewport": NARROW, "color_scheme": "light"},
  "dark phone": {"viewport": NARROW, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def opened(browser, page_path) -> dict[str, Opened]:
  return {
    name: Opened(browser, page_path, **look) for name, look in LOOKS.items()
  }


@pytest.mark.parametrize("look", LOOKS)
def test_it_can_be_read_and_asks_for_nothing(opened, page_path, look):
  seen, page = opened[look], opened[look].page
  assert "this classifier names" in page.inner_text("h1")
  assert "a &lt;b&gt;tag&lt;/b&gt;" in page.content()
  assert page.locator("b").count() == 0
  assert seen.complaints == []
  loaded = [url for url in seen.requests if not url.startswith("data:")]
  assert loaded == [page_path.as_uri()]
  images = page.evaluate(IMAGES)
  assert len(images) == 4
  for image in images:
    assert image["width"] > 200
    assert 200 < image["shown"] <= LOOKS[look]["viewport"]["width"]
  # Nothing sticks out at the side.
  wide = "document.documentElement.scrollWidth - window.innerWidth"
  assert page.evaluate(wide) <= 0
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
  dark = opened["dark"].color("backgroundColor")
  assert max(map(int, re.findall(r"\d+", dark))) < 48
  assert opened["light"].color("color") != opened["dark"].color("color")


def test_figures_are_drawn(opened):
  """A picture that is all of one colour shows nothing."""
  for figure in opened["dark"].page.locator("img").all():
    with Image.open(io.BytesIO(figure.screenshot())) as shot:
      pixels = np.asarray(shot.convert("RGB"))
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
