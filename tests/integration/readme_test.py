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
import sys

import pytest

from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.shell.parser import parse
from tests.extract.caches import make_identity, write_cache

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = (
  "README.md",
  "PRIVACY.md",
  "extract/README.md",
  "pipeline/README.md",
  "linear_dp/README.md",
)
LIBRARIES = (
  *("tensorflow_datasets", "numpy", "grain"),
  *("array_record", "pandas", "torch"),
)
OTHER_PYTHON = "ONESHOT_DP_TRANSFORMERS_PYTHON"
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


def test_there_is_something_to_type():
  runnable = [language for language, marked, _ in fences("README.md") if marked]
  assert runnable.count("sh") == 3  # the three uses
  assert runnable.count("python") == 1
  assert len(command_lines("README.md")) > 15
  assert "@@" not in (ROOT / "README.md").read_text()


def test_the_python_block_says_what_is_shown():
  blocks = fences("README.md")
  at = next(i for i, block in enumerate(blocks) if block[0] == "python")
  said = io.StringIO()
  with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
    exec(blocks[at][2], {})
  assert blocks[at + 1] == ("text", False, said.getvalue())


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
  """Every runnable block of the README, in a folder where nothing is."""
  folder = tmp_path_factory.mktemp("reader")
  command = folder / "bin" / "oneshot-dp"
  command.parent.mkdir()
  command.write_text(
    f'#!/bin/sh\nexec "{sys.executable}" -m oneshot_dp.pipeline.cli "$@"\n'
  )
  command.chmod(0o755)
  environment = {
    "HOME": str(folder / "home"),
    "PATH": f"{command.parent}:/usr/bin:/bin",
    "PYTHONPATH": str(ROOT),
    **{k: v for k, v in os.environ.items() if k.startswith("JAX_")},
    "LANG": os.environ.get("LANG", "C.UTF-8"),
  }
  said = []
  for language, marked, block in fences("README.md"):
    if not marked or language != "sh":
      continue
    done = subprocess.run(
      ["bash", "-euo", "pipefail", "-c", block],
      cwd=folder,
      env=environment,
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    said.append(done.stdout)
  return folder, "\n".join(said)


@pytest.mark.slow
def test_the_runnable_blocks_run_in_order(typed):
  folder, said = typed
  assert (folder / "heads/epsilon-2/receipt.json").is_file()
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
  head = folder / "results/heads/epsilon-1-draw-0"
  assert json.loads((head / "receipt.json").read_text())["private"] is True
