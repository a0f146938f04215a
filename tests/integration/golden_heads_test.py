"""What the product gave before its redesign, bit for bit.

Seeded heads of every kind through the command line and through the notebook's
door, with their receipts, tables, ledgers and caches, against
`golden_heads.npz`, which `python golden_heads_test.py --write` makes.

Whatever a redesign moves or renames is said at the top of this file: in
`main`, `door` and `make_quick`, in the words of the command line, and in
RENAMED, REWORDED and MOVED_ON. What the redesign must not change comes after.

One thing was changed on purpose: a row of zeros adds nothing any more where the
bias is trained or where rows are centred by public ones. The runs with such a
row were made again then; without it, old and new code gave the same bytes. And
whitened and multi-step heads add up integers now, of exponentials that are the
same in any program: theirs were made again, too.
"""

# ruff: noqa: E402

import contextlib
import csv
import functools
import hashlib
import importlib.metadata
import io
import json
import math
import os
import pathlib
import platform
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

# As the tests' conftest: JAX reads both when it is first imported.
_DEVICES = "--xla_force_host_platform_device_count"
os.environ["JAX_PLATFORMS"] = "cpu"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8"

import numpy as np
import pytest
import safetensors
from dp_accounting import NeighboringRelation

pytestmark = pytest.mark.slow


def main(argv: list[str]) -> int:
  """The command line."""
  from oneshot_dp.pipeline.cli import main as command_line

  return command_line(argv)


def door() -> tuple[Any, Any, Any]:
  """The notebook's train_heads, its NoiseSource, and HeadConfig."""
  import oneshot_dp
  from oneshot_dp.configs.head_config import HeadConfig

  return oneshot_dp.train_heads, oneshot_dp.NoiseSource, HeadConfig


def make_quick(patch: pytest.MonkeyPatch) -> None:
  """No pictures; chunks of 32 rows a device: several, and little padding."""
  patch.setitem(sys.modules, "matplotlib", None)
  from oneshot_dp.linear_dp.rows import unit_norm_rows

  patch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 32)


DRAWS = "--num-draws"
SEED = "--noise-seed"
LEDGERS = "--ledger-dir"
RESULTS = "results.csv"
RECEIPT = "receipt.json"
WEIGHTS = "head.safetensors"

RENAMED: dict[str, str] = {"results.seed": "results.draw"}
"""Fields by their old and new names, such as "receipt.data.split"; a section
brings all that is in it along. Columns of results.csv are "results.seed"."""
REWORDED: dict[str, str] = {
  "-seed-": "-draw-",
  'kind": "one step"': 'kind": "one-step"',
  "one of units, auto": "one of units",
  # n is published, so the same noise is stated in the relation that holds.
  'neighboring_relation": "ADD_OR_REMOVE_ONE"': 'neighboring_relation":'
  ' "REPLACE_SPECIAL"',
}
"""Text in the golden file that is another now: "-seed-" in names of folders,
say, or a sentence of a receipt."""
MOVED_ON: tuple[str, ...] = (
  "ledger.nonce",
  "ledger.record",
  "receipt.format_version",
  "receipt.privacy.epsilon_by_relation.ADD_OR_REMOVE_ONE",
  "receipt.composition.noise_multipliers_charged",
  "receipt.composition.dp_event",
  "ledger.mechanisms",
  "ledger.row_keys",
  "ledger.dp_event",
  "results.balanced",
  "results.recall",
  "results.evaluation.left_out",
  "answer.balanced",
  "answer.recall",
  "answer.evaluation.left_out",
)
"""Fields (by their new names) that only the old or only the new code has."""
NEW_ENTRIES = ("published",)
"""Kinds of entries in a ledger that only the new code writes."""


def as_format_1(name: str, content: bytes) -> bytes:
  """A file of a cache, less what format 2 added: keys of the rows."""
  if name not in ("cache_info.json", "shards.json"):
    return content
  told = json.loads(content)
  if name == "cache_info.json":
    told["format_version"] = 1
  for shard in told.get("shards", []):
    del shard["outside"], shard["keys_sha256"]
  return (json.dumps(told, indent=2, sort_keys=True) + "\n").encode()


ADDED_TO_CACHES = ".content_keys-"
"""Part of the names of files that caches of format 1 did not have."""
VOLATILE = (
  "receipt.software",
  "receipt.head_sha256",  # checked against the file
  "receipt.composition.ledger_entry",
  "results.evaluation.ledger_entry",
  "answer.evaluation.ledger_entry",
  "ledger.entry",
  "ledger.previous",
  "ledger.time",
)
"""Fields that hold times, paths, versions, or digests of such."""

GOLDEN = pathlib.Path(__file__).with_name("golden_heads.npz")
N, D, K = 320, 16, 6
DELTA = 1e-5
_BOTH = "--cache @caches/train --eval-cache @caches/test"
_PAID = f"--delta {DELTA} {SEED} 7 {LEDGERS} @ledgers --out @out --quiet"
_SWEEP = f"sweep {_BOTH} {_PAID} {DRAWS} 2"
_TRAIN = f"train --cache @caches/train {_PAID}"
_USERS = "--cache @caches/users"
_PUBLIC = "--public-cache @caches/public"
_WHITE = f"{_PUBLIC} --public-statistics mean-and-covariance"
_SCORE = "evaluate @heads/one --cache @caches/test --json --quiet"

RUNS: dict[str, str] = {
  "lamb": f"{_SWEEP} --epsilons 0.5 2 8 --head lamb --baseline",
  "lamb, independent": f"{_SWEEP} --epsilons 1 8 --release independent",
  "lamb, replace-one": f"{_SWEEP} --epsilons 1 8"
  " --neighboring-relation replace-one",
  "lamb, settings": f"{_SWEEP} --epsilons 1 8 --train-bias --initial-bias -2"
  " --l2-clip-norm 0.5 --learning-rate 0.25 --eps-in-noise-sds 2",
  "adam": f"{_SWEEP} --epsilons 1 8 --head adam --eps 1e-3 --train-bias",
  "momentum": f"{_SWEEP} --epsilons 1 8 --head momentum --learning-rate 0.5",
  "units clipped": f"{_SWEEP} --epsilons 1 8 {_USERS} --train-bias --baseline",
  "units of 3 rows": f"{_SWEEP} --epsilons 1 8 {_USERS} --max-rows-per-unit 3",
  "least-squares": f"{_SWEEP} --epsilons 0.5 2 8 --head least-squares"
  " --baseline",
  "least-squares, independent": f"{_SWEEP} --epsilons 1 8 --head least-squares"
  " --release independent --neighboring-relation replace-one",
  "whitened": f"{_SWEEP} --epsilons 1 8 --head whitened --baseline",
  "multi-step, full": f"{_SWEEP} --epsilons 1 8 --head multi-step --baseline"
  " --steps.epochs 3 --steps.l2-clip-norm 0.5 --steps.ema-decay 0.5",
  "multi-step, sigmoid": f"{_SWEEP} --epsilons 1 8 --head multi-step"
  " --steps.epochs 2 --steps.loss sigmoid --steps.initial-bias -3"
  " --steps.optimizer adam --steps.init lecun --steps.init-seed 3",
  "multi-step, poisson": f"{_SWEEP} --epsilons 8 16 --head multi-step"
  " --steps.epochs 2 --steps.batch-size 160 --steps.sampling poisson"
  " --steps.optimizer adam",
  "multi-step, partition": f"{_SWEEP} --epsilons 1 8 --head multi-step"
  " --steps.epochs 2 --steps.batch-size 100 --steps.sampling partition"
  " --steps.optimizer lamb --steps.loss sigmoid --steps.no-unit-norm"
  " --steps.init normal --steps.init-scale 0.01",
  "public mean, lamb": f"{_SWEEP} --epsilons 1 8 {_PUBLIC}",
  "public covariance, lamb": f"{_SWEEP} --epsilons 1 8 {_WHITE} --train-bias",
  "public covariance, least-squares": f"{_SWEEP} --epsilons 1 8 {_WHITE}"
  " --head least-squares",
  "public covariance, whitened": f"{_TRAIN} --epsilon 2 {_WHITE}"
  " --head whitened",
  "several heads, logistic": f"compare {_BOTH} {_PAID} {DRAWS} 2"
  " --epsilons 1 8 --heads lamb momentum least-squares --baseline",
  "one": f"{_TRAIN} --head lamb --epsilon 4 --json",
  "one of units": f"{_TRAIN} --epsilon 4 {_USERS} --head lamb",
  "noisy counts": f"{_SWEEP} --epsilons 1 8 --private-eval 0.5",
  "noisy counts of one": f"{_SCORE} --private-eval 0.5 --delta {DELTA} {SEED} 5"
  f" {LEDGERS} @ledgers",
  "counts of one": f"{_SCORE} --not-trained-on",
}
IMPORTS: dict[str, str] = {
  "train": "@data.npz --split train",
  "test": "@data.npz --split test",
  "users": "@users.npz --dataset-name data --unit-name user",
  "public": "@public.npz --embedding-dtype float16",
  "bfloat16": "@data.npz --split test --embedding-dtype bfloat16",
}
"""Caches, all of one backbone."""
DOOR: dict[str, dict[str, Any]] = {
  "lamb": {},
  "adam": {"head": "adam"},
  "momentum": {"head": {"head": "momentum", "l2_clip_norm": 0.25}},
  "lamb, settings": {
    "head": {"train_bias": True, "initial_bias": -2.0, "eps_in_noise_sds": 2.0}
  },
  "least-squares": {"head": "least-squares"},
  "whitened": {"head": "whitened"},
  "lamb, replace-one": {
    "neighboring_relation": NeighboringRelation.REPLACE_ONE
  },
  "lamb, units": {"units": True},
}
"""Arguments of train_heads."""

Facts = dict[str, dict[str, Any]]
"""Places (a head's folder, a row of a table …), and their flat JSON."""
Weights = dict[str, np.ndarray]
Found = tuple[Facts, Weights]


def arrays(seed: int, n: int = N) -> dict[str, np.ndarray]:
  """Rows of very different lengths, one of them empty; always the same."""
  rng = np.random.default_rng(seed)
  # Small integers times powers of two: no processor may round them.
  label = np.minimum(rng.integers(0, K, n), rng.integers(0, K + 2, n))
  centres = np.random.default_rng(5).integers(-64, 65, (K, D))
  steps = centres[label] + rng.integers(-96, 97, (n, D))
  length = 2.0 ** rng.integers(-10, -6, (n, 1))
  length[n // 2] = 0
  return {
    "embedding": (steps * length).astype(np.float32),
    "label": label,
    "unit_id": np.minimum(rng.integers(0, 60, n), rng.integers(0, 90, n)) ** 3,
  }


def make_caches(folder: pathlib.Path) -> pathlib.Path:
  """The npz files, a cache of each of IMPORTS, and a head to score."""
  train, test = arrays(1), arrays(2, 150)
  # Of one sign, as the features of some networks are.
  public = arrays(3, 200) | {"embedding": arrays(3, 200)["embedding"] ** 2}
  users = train.copy()
  del train["unit_id"], test["unit_id"], public["unit_id"]
  both = {"train": train, "test": test}
  splits = {
    f"{s}_{name}": a for s, of in both.items() for name, a in of.items()
  }
  for name, of in (("data", splits), ("users", users), ("public", public)):
    np.savez(folder / f"{name}.npz", allow_pickle=False, **of)
  more = f"--backbone-name golden --num-classes {K} --quiet"
  for name, words in IMPORTS.items():
    command(folder, f"import {words} {more} --out @caches/{name}")
  command(folder, RUNS["one"].replace("--out @out", "--out @heads/one"))
  return folder


def command(folder: pathlib.Path, line: str) -> str:
  """What a command line says; "@out" is the file `out` of a folder."""
  words = [
    str(folder / word[1:]) if word.startswith("@") else word
    for word in line.split()
  ]
  with contextlib.redirect_stdout(io.StringIO()) as said:
    assert main(words) == 0, line
  return said.getvalue()


def run(line: str, caches: pathlib.Path, out: pathlib.Path) -> Found:
  """Runs a command line; all that it wrote, made comparable."""
  for name in ("caches", "heads"):
    (out / name).symlink_to(caches / name)
  said = command(out, line)
  facts, weights = heads_in(out / "out")
  for file in sorted(out.glob("ledgers/*.jsonl")):
    entries = map(json.loads, file.read_text().splitlines())
    told = [entry for entry in entries if entry["kind"] not in NEW_ENTRIES]
    for i, entry in enumerate(told):
      facts[f"ledger entry {i}"] = flat(entry, "ledger")
  table = out / "out" / RESULTS
  if table.exists():
    with table.open(newline="") as rows:
      for i, row in enumerate(csv.DictReader(rows)):
        facts[f"row {i}"] = flat(row, "results")
    told = json.loads(table.with_suffix(".json").read_text())
    del told["heads"]  # the rows
    facts["results"] = flat(told, "results")
  if line.startswith("evaluate"):
    facts["answer"] = flat(json.loads(said), "answer")
  return facts, weights


def heads_in(folder: pathlib.Path) -> Found:
  """Receipts and weights of all heads in a folder."""
  facts: Facts = {}
  weights: Weights = {}
  for file in sorted(folder.rglob(WEIGHTS)):
    name = str(file.parent.relative_to(folder.parent))
    receipt = json.loads((file.parent / RECEIPT).read_text())
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert receipt["head_sha256"] == sha256
    with safetensors.safe_open(file, "np") as tensors:
      facts[name] = {
        **flat(receipt, "receipt"),
        **flat(tensors.metadata(), "weights"),
        "sha256": sha256,
      }
      for key in tensors.keys():  # noqa: SIM118 (it is no dict)
        weights[f"{name}/{key}"] = tensors.get_tensor(key)
  return facts, weights


def notebook(options: Mapping[str, Any]) -> Found:
  """The same of a call of the notebook's door."""
  train_heads, noise_source, head_config = door()
  rows, options = arrays(1), dict(options)
  if isinstance(options.get("head"), dict):
    options["head"] = head_config(**options["head"])
  heads = train_heads(
    rows["embedding"],
    rows["label"],
    num_classes=K,
    epsilons=(1.0, 8.0),
    delta=DELTA,
    unit_ids=rows["unit_id"] if options.pop("units", False) else None,
    source=noise_source(7),
    **options,
  )
  facts: Facts = {}
  weights: Weights = {}
  new = ("epsilon_by_relation", "epsilon_by_delta", "num_draws")
  new += ("class_names", "num_classes_source")
  for i, trained in enumerate(heads):
    kernel, bias = map(np.asarray, (trained.head.kernel, trained.head.bias))
    whole = hashlib.sha256(kernel.tobytes() + bias.tobytes()).hexdigest()
    facts[f"head {i}"] = {
      **{
        name: value
        for name, value in flat(trained.receipt(), "receipt").items()
        if not set(name.split(".")) & set(new)
      },
      "unit_norm": trained.head.unit_norm,
      "sha256": whole,
    }
    weights |= {f"head {i}/kernel": kernel, f"head {i}/bias": bias}
  return facts, weights


def cache_files(caches: pathlib.Path, name: str) -> Found:
  """SHA-256 of every file of a cache, shards and metadata."""
  folder = caches / "caches" / name
  return {
    (name := str(file.relative_to(folder))): {
      "sha256": hashlib.sha256(as_format_1(name, file.read_bytes())).hexdigest()
    }
    for file in sorted(folder.rglob("*"))
    if ADDED_TO_CACHES not in file.name
  }, {}


def flat(value: Mapping[str, Any], prefix: str) -> dict[str, Any]:
  """Nested JSON as one dict of dotted names, less what is volatile."""
  found: dict[str, Any] = {}
  for key, inner in value.items():
    name = f"{prefix}.{key}"
    if within(name, (*VOLATILE, *MOVED_ON)):
      continue
    if isinstance(inner, Mapping) and inner:
      found |= flat(inner, name)
    else:
      found[name] = inner
  return found


def within(name: str, fields: Iterable[str]) -> bool:
  return any(name == field or name.startswith(f"{field}.") for field in fields)


def platform_of() -> dict[str, str]:
  """What may move the last bits of a product of matrices."""
  cpu = pathlib.Path("/proc/cpuinfo")
  about = platform.processor()
  if cpu.exists():
    about = "\n".join(
      dict.fromkeys(
        line
        for line in cpu.read_text().splitlines()
        if line.startswith(("model name", "flags", "CPU part", "Features"))
      )
    )
  return {
    "machine": platform.machine(),
    "cpu": hashlib.sha256(about.encode()).hexdigest(),
    "jaxlib": importlib.metadata.version("jaxlib"),
    "numpy": np.__version__,
  }


def as_now(name: str) -> str:
  """A field of the golden file, as it is called now."""
  for old, new in RENAMED.items():
    if within(name, [old]):
      return new + name.removeprefix(old)
  return name


def reworded(text: str) -> str:
  for old, new in REWORDED.items():
    text = text.replace(old, new)
  return text


@functools.cache
def golden() -> tuple[
  dict[str, dict[str, str]], dict[str, Facts], dict[str, Weights]
]:
  """Platform, facts and weights of each test, by the names of now."""
  with np.load(GOLDEN) as file:
    told = json.loads(reworded(file["json"].tobytes().decode()))
    weights: dict[str, Weights] = {}
    for name in file.files:
      if name != "json":
        test, _, tensor = name.partition(": ")
        weights.setdefault(reworded(test), {})[reworded(tensor)] = file[name]
  facts = {
    test: {
      place: {
        as_now(name): value
        for name, value in fields.items()
        if not within(as_now(name), MOVED_ON)
      }
      for place, fields in places.items()
    }
    for test, places in told["facts"].items()
  }
  made_on = dict.fromkeys(facts, told["platform"]) | told["made_again"]
  return made_on, facts, weights


def check(test: str, found: Found) -> None:
  """Fails unless a test's facts and weights are the golden ones."""
  made_on, all_facts, all_weights = golden()
  elsewhere = made_on[test] != platform_of()
  facts, weights = all_facts[test], all_weights.get(test, {})
  # As JSON reads it back.
  now: Facts = json.loads(json.dumps(found[0]))
  assert now.keys() == facts.keys()
  assert found[1].keys() == weights.keys()
  faults = []
  for place, expected in facts.items():
    for name in sorted(expected.keys() | now[place].keys()):
      if name == "sha256" and elsewhere and weights:
        continue  # the weights themselves come below
      was, is_now = (
        each.get(name, "(absent)") for each in (expected, now[place])
      )
      # An epsilon is read off the theorem now, not off its solver + 1e-9.
      if not is_close(was, is_now, 1e-6 if elsewhere else 2e-9):
        faults.append(f"{place}: {name} was {was!r} and is {is_now!r}")
  for name, was in weights.items():
    is_now = found[1][name]
    assert (is_now.dtype, is_now.shape) == (was.dtype, was.shape), name
    if is_now.tobytes() == was.tobytes():
      continue
    if elsewhere:
      # Sums are the same; products of floats, and where a fit without noise
      # ends, are not. (Tried with XLA and OpenBLAS held to SSE 4.2, AVX 2.)
      near = 2e-3 if "NOT-PRIVATE" in name else 2**-17
      # A bias is what is left of -10.
      atol = max(near * np.abs(was).max(), 2**-19)
      np.testing.assert_allclose(
        is_now, was, rtol=1e-6, atol=atol, err_msg=name
      )
    else:
      apart = np.abs(is_now - was)
      faults.append(
        f"{name}: {(apart > 0).sum()} of {was.size} weights differ, by up to"
        f" {apart.max():g} of {np.abs(was).max():g}"
      )
  assert not faults, "\n".join(["", *faults])


def is_close(was: Any, is_now: Any, rel_tol: float) -> bool:
  """Whether numbers, those in lists and texts too, agree but for rounding."""
  if isinstance(was, list) and isinstance(is_now, list):
    same = len(was) == len(is_now)
    return same and all(
      is_close(*pair, rel_tol) for pair in zip(was, is_now, strict=True)
    )
  if isinstance(was, dict) and isinstance(is_now, dict):
    same = was.keys() == is_now.keys()
    return same and all(is_close(was[k], is_now[k], rel_tol) for k in was)
  try:
    return math.isclose(float(was), float(is_now), rel_tol=rel_tol)
  except (TypeError, ValueError):
    return was == is_now


@pytest.fixture(scope="module", autouse=True)
def patched():
  with pytest.MonkeyPatch.context() as patch:
    make_quick(patch)
    yield


@pytest.fixture(scope="module")
def caches(patched, tmp_path_factory) -> pathlib.Path:
  return make_caches(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", IMPORTS)
def test_an_imported_cache(name, caches):
  check(f"cache / {name}", cache_files(caches, name))


@pytest.mark.parametrize("name", RUNS)
def test_the_command_line(name, caches, tmp_path):
  check(f"run / {name}", run(RUNS[name], caches, tmp_path))


@pytest.mark.parametrize("name", DOOR)
def test_the_notebook(name):
  check(f"notebook / {name}", notebook(DOOR[name]))


def write() -> None:
  """Makes the golden file of whatever code is imported."""
  with (
    pytest.MonkeyPatch.context() as patch,
    tempfile.TemporaryDirectory() as place,
  ):
    make_quick(patch)
    folder = pathlib.Path(place)
    caches = make_caches(folder)
    found = {f"cache / {name}": cache_files(caches, name) for name in IMPORTS}
    for i, (name, line) in enumerate(RUNS.items()):
      (folder / str(i)).mkdir()
      found[f"run / {name}"] = run(line, caches, folder / str(i))
    found |= {f"notebook / {name}": notebook(DOOR[name]) for name in DOOR}
  told = {
    "platform": platform_of(),
    "made_again": {},
    "facts": {test: facts for test, (facts, _) in found.items()},
  }
  np.savez_compressed(
    GOLDEN,
    allow_pickle=False,
    json=np.frombuffer(json.dumps(told).encode(), np.uint8),
    **{
      f"{test}: {name}": tensor
      for test, (_, weights) in found.items()
      for name, tensor in weights.items()
    },
  )
  print(f"{GOLDEN}: {GOLDEN.stat().st_size:,} bytes, {len(found)} tests")


if __name__ == "__main__":
  if sys.argv[1:] != ["--write"]:
    sys.exit("python golden_heads_test.py --write")
  write()
