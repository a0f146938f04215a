"""The house in numbers: `python tests/house.py` prints each beside its target.

Lines and files are of what git tracks. What `train` and an image enter is
counted by running both on made-up data: every function of ours that is called
in a fresh process, and the files that these are in.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = "configs/", "extract/", "linear_dp/", "pipeline/", "oneshot_dp/"

RUNS = f"""
import inspect, json, os, sys, threading
entered = set()
roots = tuple(sys.argv[1] + "/" + name for name in {PACKAGES})
def note(frame, event, _):
  code = frame.f_code
  is_function = code.co_flags & inspect.CO_OPTIMIZED  # no body of a class
  if event == "call" and is_function and not code.co_name.startswith("<"):
    file = os.path.realpath(code.co_filename)
    if file.startswith(roots):
      entered.add((file, code.co_qualname))
def begin():
  threading.setprofile(note)
  sys.setprofile(note)
SETUP
sys.setprofile(None)
print(json.dumps([len(set(file for file, _ in entered)), len(entered)]))
"""

TRAIN = """
from oneshot_dp.pipeline import cli
begin()
assert cli.main("train --cache cache --epsilon 1 --delta 1e-4 --out head"
                " --ledger ledger.sqlite".split()) == 0
"""

IMAGE = """
from oneshot_dp.extract.job import job, shard
from oneshot_dp.pipeline import cli
def counted(*arguments, make=shard.extract_shard):
  begin()
  try:
    return make(*arguments)
  finally:
    sys.setprofile(None)
    threading.setprofile(None)
shard.extract_shard = job.extract_shard = counted
assert cli.main("extract images.npz --split all --backbone glyph_vit"
                " --out embedded".split()) == 0
"""


def said(*words: str, cwd: str | pathlib.Path = ROOT) -> str:
  """What a command prints."""
  run = subprocess.run(words, cwd=cwd, check=True, capture_output=True)
  return run.stdout.decode()


def tracked(*patterns: str) -> list[pathlib.Path]:
  """Files of these patterns that git knows, links left out."""
  listed = said("git", "ls-files", "-z", *patterns).split("\0")
  paths = [ROOT / name for name in listed if name]
  return [path for path in paths if path.is_file() and not path.is_symlink()]


def lines(paths: list[pathlib.Path]) -> int:
  return sum(len(path.read_text().splitlines()) for path in paths)


def commands_and_flags() -> tuple[int, int]:
  """Commands, and distinct flags in their help, Beam's left out."""
  from oneshot_dp.pipeline.cli import COMMANDS

  flags: set[str] = set()
  for name in COMMANDS:
    shown = said(sys.executable, "-m", "oneshot_dp", name, "--help")
    flags |= {*re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", shown)}
  return len(COMMANDS), len(flags)


def entered(setup: str, folder: str) -> tuple[int, int]:
  """Files and functions of ours that a run enters."""
  code = RUNS.replace("SETUP", setup)
  printed = said(sys.executable, "-c", code, str(ROOT), cwd=folder)
  files, functions = json.loads(printed.splitlines()[-1])
  assert files, "oneshot_dp is not that of this folder: set PYTHONPATH"
  return files, functions


def make_material(folder: str) -> None:
  """A cache of two classes and an npz of images, in this folder."""
  import numpy as np

  rng = np.random.default_rng(0)
  label = np.arange(4000) % 2
  rows = rng.standard_normal((4000, 8)) + 2 * label[:, None]
  np.savez(f"{folder}/made_up.npz", embedding=rows.astype("f4"), label=label)
  image = rng.integers(0, 256, (32, 24, 24, 3), np.uint8)
  names = {"class_names": ["a", "b"]}
  np.savez(f"{folder}/images.npz", image=image, label=label[:32], **names)
  words = "-m oneshot_dp import made_up.npz --num-classes 2 --out cache"
  said(sys.executable, *words.split(), cwd=folder)


def main() -> None:
  product = [
    path
    for path in tracked("*.py")
    if path.relative_to(ROOT).as_posix().startswith(PACKAGES)
  ]
  tests = tracked("tests/*.py")
  privacy = (ROOT / "PRIVACY.md").read_text()
  markdown = [p for p in tracked("*.md") if p.name != "CHANGELOG.md"]
  commands, flags = commands_and_flags()
  rows = [
    ("product lines", lines(product), 14_000),
    ("product files", len(product), 100),
    ("test lines", lines(tests), 15_000),
    ("PRIVACY.md lines", len(privacy.splitlines()), 350),
    ("PRIVACY.md words", len(privacy.split()), 4_500),
    ("README.md words", len((ROOT / "README.md").read_text().split()), 1_200),
    ("Markdown lines but CHANGELOG", lines(markdown), 1_100),
    ("commands", commands, 13),
    ("distinct flags", flags, 60),
  ]
  for name, setup, most in (
    ("train enters", TRAIN, (40, 180)),
    ("an image enters", IMAGE, (12, 70)),
  ):
    with tempfile.TemporaryDirectory() as folder:
      make_material(folder)
      files, functions = entered(setup, folder)
    rows += [
      (f"files that {name}", files, most[0]),
      (f"functions that {name}", functions, most[1]),
    ]
  for name, value, target in rows:
    mark = "" if value <= target else "  over"
    print(f"{name:33} {value:7,} of {target:7,}{mark}")


if __name__ == "__main__":
  main()
