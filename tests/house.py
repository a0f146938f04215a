"""The house in numbers: `python tests/house.py` prints them beside the limits.

Density is a picture, not a target to write towards: per 1,000 lines that are
not blank, how many comprehensions, parallel assignments `a, b = x, y`,
ternaries, walruses, calls of getattr and its like, and tricks (text times a
truth value, `x.append(y) or z`) there are; and the share of lines that are
comments or docstrings. The numbers wanted are near those of optax, jax_privacy
and dp_accounting.

Limits are only on what a person feels: how many files one reads to follow
`train` or an image, and with `--time` how long the tests take. What `train`
and an image enter is counted by running both on made-up data in a fresh
process, which notes the file of every function of ours that is called. Only
Python files count: Jinja compiles a template into functions that bear its name.
"""

import argparse
import ast
import collections
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("configs/", "extract/", "linear_dp/", "pipeline/", "oneshot_dp/")
REFLECTION = ("getattr", "setattr", "hasattr", "vars")
MUTATORS = ("append", "update", "setdefault", "add")
COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)

# Per 1,000 lines; comments and docstrings in percent of lines.
WANTED = {
  "comprehensions": "14 (tests 20)",
  "parallel assignments": "2.5 (tests 4)",
  "ternaries": "6 (tests 5)",
  "walruses": "1.5",
  "reflection": "1.5",
  "tricks": "0",
  "comments %": "at least 5",
  "docstrings %": "at least 27",
}

RUNS = f"""
import inspect, json, os, sys, threading
entered = set()
roots = tuple(sys.argv[1] + "/" + name for name in {PACKAGES})
def note(frame, event, _):
  code = frame.f_code
  is_function = code.co_flags & inspect.CO_OPTIMIZED  # no body of a class
  if event == "call" and is_function and not code.co_name.startswith("<"):
    file = os.path.realpath(code.co_filename)
    if file.startswith(roots) and file.endswith(".py"):
      entered.add((file, code.co_qualname))
def begin():
  threading.setprofile(note)
  sys.setprofile(note)
SETUP
sys.setprofile(None)
print(json.dumps([len(set(file for file, _ in entered)), len(entered)]))
"""

TRAIN = """
from oneshot_dp.pipeline.cli import main
begin()
assert main("train --cache cache --epsilon 1 --delta 1e-4 --out head"
            " --ledger ledger.sqlite".split()) == 0
"""

IMAGE = """
from oneshot_dp.extract.job import job, shard
from oneshot_dp.pipeline.cli import main
def counted(*arguments, make=shard.extract_shard):
  begin()
  try:
    return make(*arguments)
  finally:
    sys.setprofile(None)
    threading.setprofile(None)
shard.extract_shard = job.extract_shard = counted
assert main("extract images.npz --split all --backbone glyph_vit"
            " --out embedded".split()) == 0
"""


def output_of(*words: str, cwd: str | pathlib.Path = ROOT) -> str:
  """Runs a command and returns what it prints."""
  run = subprocess.run(words, cwd=cwd, check=True, capture_output=True)
  return run.stdout.decode()


def tracked_python_files() -> list[pathlib.Path]:
  """Python files that git knows, links left out."""
  listed = output_of("git", "ls-files", "-z", "*.py").split("\0")
  paths = []
  for name in listed:
    path = ROOT / name
    if name and path.is_file() and not path.is_symlink():
      paths.append(path)
  return paths


def density(paths: list[pathlib.Path]) -> dict[str, float]:
  """Counts constructs per 1,000 lines, and comments and docstrings in %."""
  num_lines = 0
  counts = collections.Counter(dict.fromkeys(WANTED, 0))
  for path in paths:
    text = path.read_text()
    for line in text.splitlines():
      num_lines += bool(line.strip())
      counts["comments %"] += line.lstrip().startswith("#")
    for node in ast.walk(ast.parse(text)):
      counts.update(constructs_of(node))
  found = {}
  for name in WANTED:
    share = counts[name] / num_lines
    found[name] = 100 * share if name.endswith("%") else 1000 * share
  return {"files": len(paths), "lines": num_lines, **found}


def constructs_of(node: ast.AST) -> dict[str, int]:
  """Names the constructs that a node of the syntax tree is."""
  found = {
    "comprehensions": int(isinstance(node, COMPREHENSIONS)),
    "ternaries": int(isinstance(node, ast.IfExp)),
    "walruses": int(isinstance(node, ast.NamedExpr)),
  }
  if isinstance(node, ast.Assign):
    is_parallel = isinstance(node.targets[0], ast.Tuple)
    is_parallel &= isinstance(node.value, ast.Tuple)
    found["parallel assignments"] = int(is_parallel)
  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
    found["reflection"] = int(node.func.id in REFLECTION)
  if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
    found["tricks"] = int(is_text_times_truth(node))
  if isinstance(node, ast.BoolOp):
    found["tricks"] = int(any(is_mutation(value) for value in node.values))
  if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
    docstring = ast.get_docstring(node, clean=False)
    if docstring:
      found["docstrings %"] = docstring.count("\n") + 1
  return found


def is_text_times_truth(product: ast.BinOp) -> bool:
  """Whether text is multiplied, and not by a number that is written out."""
  sides = (product.left, product.right)
  is_repeated = any(
    isinstance(side, ast.Constant) and isinstance(side.value, int)
    for side in sides
  )
  return any(is_text(side) for side in sides) and not is_repeated


def is_text(node: ast.AST) -> bool:
  is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
  return is_string or isinstance(node, ast.JoinedStr)


def is_mutation(node: ast.AST) -> bool:
  if not isinstance(node, ast.Call):
    return False
  method = node.func
  return isinstance(method, ast.Attribute) and method.attr in MUTATORS


def entered(setup: str, folder: str) -> tuple[int, int]:
  """Counts files and functions of ours that a run enters."""
  code = RUNS.replace("SETUP", setup)
  printed = output_of(sys.executable, "-c", code, str(ROOT), cwd=folder)
  files, functions = json.loads(printed.splitlines()[-1])
  assert files, "oneshot_dp is not that of this folder: set PYTHONPATH"
  return files, functions


def make_material(folder: str) -> None:
  """Writes a cache of two classes and an npz of images into this folder."""
  import numpy as np

  rng = np.random.default_rng(0)
  label = np.arange(4000) % 2
  rows = rng.standard_normal((4000, 8)) + 2 * label[:, None]
  np.savez(f"{folder}/made_up.npz", embedding=rows.astype("f4"), label=label)
  image = rng.integers(0, 256, (32, 24, 24, 3), np.uint8)
  np.savez(
    f"{folder}/images.npz",
    image=image,
    label=label[:32],
    class_names=["a", "b"],
  )
  words = "-m oneshot_dp import made_up.npz --num-classes 2 --out cache"
  output_of(sys.executable, *words.split(), cwd=folder)


def print_density() -> None:
  product = []
  tests = []
  for path in tracked_python_files():
    name = path.relative_to(ROOT).as_posix()
    if name.startswith(PACKAGES):
      product.append(path)
    elif name.startswith("tests/"):
      tests.append(path)
  of_product = density(product)
  of_tests = density(tests)
  print(f"{'':22} {'product':>9} {'tests':>9}   wanted")
  for name, value in of_product.items():
    wanted = WANTED.get(name, "")
    print(f"{name:22} {value:9,.1f} {of_tests[name]:9,.1f}   {wanted}")


def print_limit(name: str, value: float, limit: float) -> None:
  mark = "" if value <= limit else "  over"
  print(f"{name:33} {value:7,.0f} of at most {limit:5,.0f}{mark}")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    "--time", action="store_true", help="run the tests, too, and time them"
  )
  flags = parser.parse_args()
  print_density()
  print()
  with tempfile.TemporaryDirectory() as folder:
    make_material(folder)
    files, functions = entered(TRAIN, folder)
    print_limit("files that train enters", files, 40)
    print(f"{'functions that train enters':33} {functions:7,}")
    files, functions = entered(IMAGE, folder)
    print_limit("files that an image enters", files, 14)
    print(f"{'functions that an image enters':33} {functions:7,}")
  if flags.time:
    for target, limit in (("test-fast", 75), ("test", 300)):
      start = time.monotonic()
      subprocess.run(["make", target], cwd=ROOT, check=True)
      print_limit(f"seconds of make {target}", time.monotonic() - start, limit)


if __name__ == "__main__":
  main()
