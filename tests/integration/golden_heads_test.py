"""Seeded heads of every kind are what they have always been, bit for bit.

Through the command line and through the notebook's door, with their receipts,
tables, ledgers and caches, against `golden_heads.npz`, which `python
golden_heads_test.py --write` makes of whatever code is imported.

It is made anew only where bits are changed on purpose: a row of zeros adds
nothing any more where the bias is trained or where rows are centred by public
ones; whitened and multi-step heads add up integers, of exponentials that are
the same in any program.
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
from collections.abc import Iterator, Mapping
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

import oneshot_dp
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.pipeline.cli import main

pytestmark = pytest.mark.slow


VOLATILE = (
  "receipt.software",
  "receipt.head_sha256",  # checked against the file
  "receipt.composition.ledger_entry",
  "results.evaluation.ledger_entry",
  "answer.evaluation.ledger_entry",
  "ledger.entry",
  "ledger.nonce",
  "ledger.previous",
  "ledger.record",
  "ledger.time",
)
"""Fields that hold random bits, times, paths, versions, or digests of such."""

GOLDEN = pathlib.Path(__file__).with_name("golden_heads.npz")
N, D, K = 320, 16, 6
DELTA = 1e-5
_BOTH = "--cache @caches/train --eval-cache @caches/test"
_PAID = (
  f"--delta {DELTA} --noise-seed 7 --ledger-dir @ledgers --out @out --quiet"
)
_SWEEP = f"sweep {_BOTH} {_PAID} --num-draws 2"
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
  "several heads, logistic": f"compare {_BOTH} {_PAID} --num-draws 2"
  " --epsilons 1 8 --heads lamb momentum least-squares --baseline",
  "one": f"{_TRAIN} --head lamb --epsilon 4 --json",
  "one of units": f"{_TRAIN} --epsilon 4 {_USERS} --head lamb",
  "noisy counts": f"{_SWEEP} --epsilons 1 8 --private-eval 0.5",
  "noisy counts of one": f"{_SCORE} --private-eval 0.5 --delta {DELTA}"
  " --noise-seed 5 --ledger-dir @ledgers",
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
    told = [entry for entry in entries if entry["kind"] != "published"]
    for i, entry in enumerate(told):
      facts[f"ledger entry {i}"] = flat(entry, "ledger")
  table = out / "out" / "results.csv"
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
  for file in sorted(folder.rglob("head.safetensors")):
    name = str(file.parent.relative_to(folder.parent))
    receipt = json.loads((file.parent / "receipt.json").read_text())
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
  rows, options = arrays(1), dict(options)
  if isinstance(options.get("head"), dict):
    options["head"] = HeadConfig(**options["head"])
  heads = oneshot_dp.train_heads(
    rows["embedding"],
    rows["label"],
    num_classes=K,
    epsilons=(1.0, 8.0),
    delta=DELTA,
    unit_ids=rows["unit_id"] if options.pop("units", False) else None,
    source=oneshot_dp.NoiseSource(7),
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
    str(file.relative_to(folder)): {
      "sha256": hashlib.sha256(file.read_bytes()).hexdigest()
    }
    for file in sorted(folder.rglob("*"))
  }, {}


def flat(value: Mapping[str, Any], prefix: str) -> dict[str, Any]:
  """Nested JSON as one dict of dotted names, less what is volatile."""
  found: dict[str, Any] = {}
  for key, inner in value.items():
    name = f"{prefix}.{key}"
    if name in VOLATILE:
      continue
    if isinstance(inner, Mapping) and inner:
      found |= flat(inner, name)
    else:
      found[name] = inner
  return found


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


@functools.cache
def golden() -> tuple[
  dict[str, dict[str, str]], dict[str, Facts], dict[str, Weights]
]:
  """Platform, facts and weights of each test."""
  with np.load(GOLDEN) as file:
    told = json.loads(file["json"].tobytes())
    weights: dict[str, Weights] = {}
    for name in file.files:
      if name != "json":
        test, _, tensor = name.partition(": ")
        weights.setdefault(test, {})[tensor] = file[name]
  return told["platforms"], told["facts"], weights


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


@contextlib.contextmanager
def quick() -> Iterator[None]:
  """No pictures; chunks of 32 rows a device: several, and little padding."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "matplotlib", None)
    patch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", 32)
    yield


@pytest.fixture(scope="module", autouse=True)
def patched():
  with quick():
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
  with quick(), tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    caches = make_caches(folder)
    found = {f"cache / {name}": cache_files(caches, name) for name in IMPORTS}
    for i, (name, line) in enumerate(RUNS.items()):
      (folder / str(i)).mkdir()
      found[f"run / {name}"] = run(line, caches, folder / str(i))
    found |= {f"notebook / {name}": notebook(DOOR[name]) for name in DOOR}
  told = {
    "platforms": dict.fromkeys(found, platform_of()),
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
