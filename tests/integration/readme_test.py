"""What the documents tell people to type works, in the order they tell it."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shlex
import subprocess

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.extract.backbones.registry import (
  find_architecture,
  parameter_shapes,
)
from oneshot_dp.extract.job.embedder import IMAGES_PER_DEVICE
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.shell.parser import parse
from tests.extract.caches import make_identity, write_cache

ROOT = pathlib.Path(__file__).parents[2]
ROOMS = ("configs", "extract", "linear_dp", "pipeline", "tests")
DOCUMENTS = sorted(
  str(path.relative_to(ROOT))
  for path in (
    *ROOT.glob("*.md"),
    *(path for room in ROOMS for path in (ROOT / room).rglob("*.md")),
  )
)
LIBRARIES = (
  *("tensorflow_datasets", "numpy", "grain"),
  *("array_record", "pandas", "torch"),
)
OTHER_PYTHON = "ONESHOT_DP_TRANSFORMERS_PYTHON"
MOST_WORDS = 1500
_FENCE = re.compile(r"^```(\w+)( runnable)?\n(.*?)^```$", re.M | re.S)


def fences(document: str) -> list[tuple[str, bool, str]]:
  """Language, whether it is marked runnable, and text of each block."""
  text = (ROOT / document).read_text()
  return [
    (language, bool(mark), block)
    for language, mark, block in _FENCE.findall(text)
  ]


def command_lines(document: str) -> list[str]:
  """Whatever is shown of oneshot-dp, in fenced and in indented blocks."""
  text = (ROOT / document).read_text().replace("\\\n", " ")
  shown = re.findall(r"^(?:    )?(oneshot-dp [^\n]*)$", text, re.M)
  return [" ".join(line.split()) for line in shown]


@pytest.mark.parametrize(
  ("document", "line"),
  [(name, line) for name in DOCUMENTS for line in command_lines(name)],
)
def test_every_command_that_is_shown_is_one(document, line):
  words = shlex.split(line, comments=True)[1:]
  if "--help" in words:
    with pytest.raises(SystemExit) as stop:
      parse(words, COMMANDS)
    assert stop.value.code == 0
    return
  flags = parse(words, COMMANDS).flags
  beam_options = getattr(flags, "beam_options", ())
  # What we do not know goes to Beam: a misspelt flag of ours would, too.
  assert not beam_options or beam_options[0] == "--runner"


def test_there_is_something_to_type_and_not_too_much_to_read():
  runnable = [language for language, marked, _ in fences("README.md") if marked]
  assert runnable.count("sh") == 2  # photographs, and many epsilons
  assert runnable.count("python") == 1
  text = (ROOT / "README.md").read_text()
  assert len(text.split()) <= MOST_WORDS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_named_is_there(document):
  """Programs of the tests, and links to files and their headings."""
  text = (ROOT / document).read_text()
  for program in re.findall(r"python (tests/[\w/]+\.py)", text):
    assert (ROOT / program).is_file(), program
  for link in re.findall(r"\]\(([^)\s:]+)\)", text):
    path, _, heading = link.partition("#")
    target = (ROOT / document).parent / path if path else ROOT / document
    assert target.exists(), link
    if heading:
      titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
      assert heading in {t.lower().replace(" ", "-") for t in titles}, link


def test_the_python_block_says_what_is_shown():
  blocks = fences("README.md")
  at = next(i for i, block in enumerate(blocks) if block[0] == "python")
  said = io.StringIO()
  with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
    exec(blocks[at][2], {})
  assert blocks[at + 1] == ("text", False, said.getvalue())


def write_photographs(folder: pathlib.Path) -> None:
  """Photographs, new ones, and weights that nobody trained."""
  rng = np.random.default_rng(0)
  for i in range(36):
    pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
    kind = ("cat", "dog", "horse")[i % 3]
    for place in (f"photos/{kind}", *["new_photos"] * (i < 3)):
      (folder / place).mkdir(parents=True, exist_ok=True)
      Image.fromarray(pixels).save(folder / place / f"{i}.png")
  network = find_architecture("vit_ti16")
  shapes = parameter_shapes(
    network.build("cls", "float32"), network.reference.image_size
  )
  weights = {
    name: rng.normal(0, 0.1, shape).astype(np.float32)
    for name, shape in shapes.items()
  }
  np.savez(folder / "vit_ti16.npz", allow_pickle=False, **weights)


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
  """A folder with a cache of 2,000 rows."""
  folder = tmp_path_factory.mktemp("reader")
  identity = make_identity(2000, 192, shard_rows=2048)
  write_cache(folder / "caches/train", identity, batch_size=300)
  return folder


@pytest.mark.parametrize(("at", "library"), list(enumerate(LIBRARIES)))
def test_a_cache_is_read_with_other_libraries(caches, at, library, monkeypatch):
  """Those that are not here run where somebody has them."""
  shown = fences("extract/README.md")
  assert [language for language, _, _ in shown] == ["python", "text"] * 6
  # The first block makes what the others begin with.
  blocks = [block for _, _, block in shown]
  script, expected = (
    first * (at > 0) + blocks[2 * at + i] for i, first in enumerate(blocks[:2])
  )
  if importlib.util.find_spec(library):
    monkeypatch.chdir(caches)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      exec(script, {})
    assert said.getvalue() == expected
    return
  python = os.environ.get(OTHER_PYTHON)
  if not python:
    pytest.skip(f"${OTHER_PYTHON} names no Python that has {library}")
  done = subprocess.run(
    [python, "-c", script], cwd=caches, capture_output=True, text=True
  )
  assert (done.stdout, done.returncode) == (expected, 0), done.stderr


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
  """Every runnable block of the README, where a reader's photographs are."""
  folder = tmp_path_factory.mktemp("reader")
  write_photographs(folder)
  said = io.StringIO()
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setenv("HOME", str(folder / "home"))
    # Few photographs, in batches that are not mostly padding.
    patch.setitem(IMAGES_PER_DEVICE, "cpu", 1)
    for name in ("ONESHOT_DP_LEDGER_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
      patch.delenv(name, raising=False)
    for language, marked, block in fences("README.md"):
      if not marked or language != "sh":
        continue
      for line in block.replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line)
        assert program == "oneshot-dp"
        complaints = io.StringIO()
        with (
          contextlib.redirect_stdout(said),
          contextlib.redirect_stderr(complaints),
        ):
          assert main(words) == 0, f"{line}\n{complaints.getvalue()}"
  return folder, said.getvalue()


@pytest.mark.slow
def test_the_runnable_blocks_run_in_order(typed):
  folder, said = typed
  assert (folder / "heads/epsilon-4/receipt.json").is_file()
  assert "predictions.csv: 3 images" in said
  assert "recall of horse" in said
  assert (folder / "results/report.html").stat().st_size > 10_000
  assert "ok: " in said  # verify
  ledgers = folder / "home/.local/state/oneshot-dp/ledgers"
  assert list(ledgers.glob("*.jsonl"))


@pytest.mark.slow
def test_results_are_the_tree_that_is_shown(typed):
  folder, _ = typed
  tree = (ROOT / "README.md").read_text().split("    results/\n")[1]
  for line in tree.split("\n\n")[0].splitlines():
    for name in re.findall(r"[\w./-]+\.(?:csv|json|png|pdf|html)", line):
      if not line.strip().startswith("heads/"):
        assert (folder / "results" / name).is_file(), name
  head = folder / "results/heads/epsilon-2-draw-0"
  assert json.loads((head / "receipt.json").read_text())["private"] is True
