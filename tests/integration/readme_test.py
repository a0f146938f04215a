"""What the documents tell people to type works, in the order they tell it.

Of each Markdown file the blocks marked `runnable` run in an empty folder that
has `photos` and `new_photos`, with a ledger of its own. A block named after a
file is written to it; a `text` block is what the Python block before it prints.
"""

import contextlib
import functools
import io
import pathlib
import re
import shlex

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.pipeline.cli import COMMANDS, main
from tests.pipeline.image_heads import ROOT, digits

DOCUMENTS = sorted(
  str(path.relative_to(ROOT))
  for folder in ("", "configs", "extract", "linear_dp", "pipeline", "tests")
  for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
)
ROOMS = ("extract", "linear_dp", "pipeline")
RUNNABLE = ("README.md", *(f"{room}/README.md" for room in ROOMS))
_FENCE = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.M | re.S)
# Flags of other programs that the documents name.
_OTHERS = {
  *(
    "nodes",
    "ntasks-per-node",
    "output",
    "print-completion",
    "rows",
    "sizes",
    "small",
  ),
  *("runner", "job_endpoint", "parallelism", "environment_type", "project"),
  *("environment_config", "region", "temp_location", "sdk_container_image"),
  *("flink_job_server_jar", "flink_master", "prism_location"),
  *("spark_job_server_jar", "spark_master_url"),
  *("draws", "people"),
  "service_port",
}


def text_of(document: str) -> str:
  return (ROOT / document).read_text()


def write_photos(folder: pathlib.Path) -> None:
  """Digits as photographs of 50 people, in a folder for each class."""
  images, labels = digits("train")
  for i in range(310):
    place = folder / (f"photos/digit{labels[i]}" if i < 300 else "new_photos")
    place.mkdir(parents=True, exist_ok=True)
    pixels = (images[i, ..., 0] * 15.0).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels).resize((32, 32))
    image.save(place / f"p{i % 50}_{i}.png")


def run_commands(block: str) -> None:
  for line in block.replace("\\\n", " ").splitlines():
    # The one thing that would be downloaded.
    line = line.replace("--backbone vit_ti16", "--backbone glyph_vit")
    program, *words = shlex.split(line, comments=True)
    assert program == "oneshot-dp"
    complaints = io.StringIO()
    with contextlib.redirect_stderr(complaints):
      assert main(words) == 0, f"{line}\n{complaints.getvalue()}"


@pytest.mark.long
@pytest.mark.parametrize("document", RUNNABLE)
def test_runnable_blocks_run_in_order(document, tmp_path, monkeypatch):
  write_photos(tmp_path)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(tmp_path / "ledger"))
  names = {}
  said = None
  ran = 0
  for language, mark, block in _FENCE.findall(text_of(document)):
    if mark.endswith(".py"):
      pathlib.Path(mark).write_text(block)
    elif language == "text":
      assert said == block
    elif mark == "runnable":
      ran += 1
      with contextlib.redirect_stdout(io.StringIO()) as out:
        if language == "sh":
          run_commands(block)
        else:
          exec(compile(block, document, "exec"), names)
      said = out.getvalue() if language == "python" else None
  assert ran >= 3
  if document == "README.md":
    tree = text_of(document).split("    results/\n")[1].split("\n\n")[0]
    for name in re.findall(r"[\w.-]+\.(?:csv|json|png|pdf|html)\b", tree):
      assert list((tmp_path / "results").rglob(name)), name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
  """And the files that are named are there."""
  rooms = "configs|extract|linear_dp|pipeline|tests"
  named = re.findall(rf"[ `]((?:{rooms})/[\w/]+\.py)", text_of(document))
  assert [path for path in named if not (ROOT / path).is_file()] == []
  for link in re.findall(r"\]\(([^)\s:]+)\)", text_of(document)):
    path, _, heading = link.partition("#")
    target = (ROOT / document).parent / path if path else ROOT / document
    assert target.exists(), link
    if heading:
      titles = re.findall(r"^#+ (.*)$", target.read_text().lower(), re.M)
      anchors = set()
      for title in titles:  # as GitHub makes them
        anchors.add(re.sub(r"[^\w -]", "", title).replace(" ", "-"))
      assert heading in anchors, link


@functools.cache
def all_flags() -> set[str]:
  with contextlib.redirect_stdout(io.StringIO()) as out:
    for command in COMMANDS:
      with contextlib.suppress(SystemExit):
        main([command, "--help"])
  return set(re.findall(r"--([a-z][a-z0-9-]*)", out.getvalue()))


@pytest.mark.parametrize("document", sorted({*DOCUMENTS} - {"CHANGELOG.md"}))
def test_every_flag_that_is_named_exists(document):
  named = set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", text_of(document)))
  assert named <= all_flags() | _OTHERS
