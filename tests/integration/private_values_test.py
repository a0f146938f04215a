"""Nothing that a run prints or writes, the cache aside, has a private value.

Values are planted in the rows that no public number has: ids, class counts,
coordinates and norms. Every stream and every file of every command is searched
for them, in several spellings, those of runs that fail included. Two things may
hold them, and are named where they are left out: the weights of the baseline,
which is not private and says so, and what `verify --duplicates` finds.
"""

import base64
import contextlib
import io
import os
import pathlib
import re
import stat

import numpy as np
import pytest
from safetensors.numpy import load_file

from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.pipeline.cli import main
from tests.pipeline.by_chance import without_names
from tests.pipeline.command_line import Copy

pytestmark = pytest.mark.slow

N, D, CLASSES = 2_000, 8, ("cat", "dog", "owl")
COUNTS = (613, 1_181, 206)
FIRST_ID = 9_387_441_000
FIRST_EVAL_ID = 4_416_552_000
FIRST_UNIT = 6_602_919_000
UNIT_ROWS, MOST_ROWS = 3, 2
PLANTED = 7.3125  # a coordinate, exact in every dtype
BASELINE = "heads/baseline-NOT-PRIVATE"
BASE = "heads/base-lamb-zero-1-epoch-full-batch-clip-1"
BY_DESIGN = (
  f"private-sweep/{BASELINE}/head.safetensors",
  f"ablation/{BASE}-NOT-PRIVATE/head.safetensors",
  "ablation/heads/epochs-2-NOT-PRIVATE/head.safetensors",
  "pairs.csv",
)
"""Files that may hold private values: exact sums, and pairs of duplicates."""


def write_features(path: pathlib.Path) -> None:
  rng = np.random.default_rng(0)
  embedding = rng.standard_normal((N, D)).astype(np.float32)
  embedding[5] = PLANTED
  np.savez(
    path,
    train_embedding=embedding,
    train_label=np.repeat(np.arange(3), COUNTS),
    train_example_id=FIRST_ID + np.arange(N),
    test_embedding=rng.standard_normal((60, D)).astype(np.float32),
    test_label=np.arange(60) % 3,
    test_example_id=FIRST_EVAL_ID + np.arange(60),
    units_embedding=embedding[::-1],
    units_label=np.repeat(np.arange(3), COUNTS),
    units_example_id=FIRST_ID + np.arange(N),
    units_unit_id=FIRST_UNIT + np.arange(N) // UNIT_ROWS,
    # Rows that are twice there, for --duplicates to find.
    twice_embedding=np.tile(embedding[:20], (2, 1)),
    twice_label=np.zeros(40, int),
    twice_example_id=FIRST_ID + np.arange(40),
    class_names=np.array(CLASSES),
  )


def private_sums(path: pathlib.Path) -> np.ndarray:
  """The exact sums of the classes, on the grid."""
  data = np.load(path)
  embedding, label = data["train_embedding"], data["train_label"]
  norms = np.linalg.norm(embedding, axis=1)
  scale = ClippedGradientGrid(num_classes=3, feature_dim=D).row_scale(norms)
  rows = np.rint(embedding * scale[:, None]).astype(np.int64)
  assert np.abs(rows).max() <= GRID_RADIUS
  return np.stack([rows[label == c].sum(axis=0) for c in range(3)])


def private_values(path: pathlib.Path) -> list[str]:
  """Regular expressions of what must be nowhere."""
  norms = np.linalg.norm(np.load(path)["train_embedding"], axis=1)
  units = -(-N // UNIT_ROWS)
  used = N - N // UNIT_ROWS * (UNIT_ROWS - MOST_ROWS)
  private = (*COUNTS, units, used)
  numbers = [
    *map(str, private),
    *(f"{count:,}" for count in private),
    *(f"{count / N:.4f}" for count in COUNTS),
    *(str(abs(value)) for value in private_sums(path).ravel().tolist()),
    f"{PLANTED}",
    f"{norms[5]:.4f}",
  ]
  # Numbers whole: "613" is not in "0.4613", nor 7.3125 in 17.31256.
  whole = [rf"(?<![\w.]){re.escape(number)}(?![\w])" for number in numbers]
  ids = (FIRST_ID, FIRST_EVAL_ID, FIRST_UNIT)
  return [*whole, *(str(first)[:7] for first in ids)]


class Run:
  """Commands run in one folder, and all that they said."""

  def __init__(self, place: pathlib.Path):
    self.place = place
    self.said = ""

  def __call__(self, command: str, status: int = 0) -> None:
    process = Copy(command.split(), cwd=self.place)
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    self.said += out + err

  def here(self, command: str, status: int = 0, *, search: bool = True) -> str:
    """In this process, which is faster; what it printed.

    Args:
      command: words.
      status: how it must end.
      search: False for output that is private by design.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
      contextlib.chdir(self.place),
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
    ):
      assert main(command.split()) == status, err.getvalue()
    self.said += (out.getvalue() if search else "") + err.getvalue()
    return out.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
  place = tmp_path_factory.mktemp("private")
  write_features(place / "features.npz")
  run = Run(place)
  for split in ("train", "test"):
    run.here(
      f"import features.npz --split {split} --backbone-name net"
      f" --out caches/{split}"
    )
  ledger = "--ledger-dir ledgers"
  run.here("inspect caches/train")
  run.here("verify caches/train")
  run(
    "sweep --cache caches/train --eval-cache caches/test --epsilons 0.5 1 4"
    f" --delta 1e-5 --num-draws 2 --out sweep {ledger}"
  )
  run.here(
    f"train --cache caches/train --epsilon 2 --delta 1e-5 --out head {ledger}"
  )
  run.here("verify head")
  run.here(f"evaluate head --cache caches/test {ledger}")
  run.here(f"budget --cache caches/train {ledger}")
  # What fails must not tell either.
  run(f"evaluate head --cache caches/train {ledger}", 2)
  run.here("evaluate head --cache caches/test --ledger-dir nowhere", 2)
  run.here(
    f"train --cache caches/train --epsilon -1 --delta 1e-5 --out x {ledger}", 2
  )
  run_the_rest(run)
  return run


def run_the_rest(run: Run) -> None:
  """All else that reads private rows, in this process."""
  # Releases per patient and per example are not of one ledger.
  ledger, other = "--ledger-dir ledgers/units", "--ledger-dir ledgers/private"
  for split, unit in (("units", " --unit-name patient"), ("twice", "")):
    run.here(
      f"import features.npz --split {split} --backbone-name net"
      f" --out caches/{split}{unit}"
    )
  run.here("inspect caches/units")
  run.here("verify caches/units")
  patients = f"train --cache caches/units --epsilon 2 --delta 1e-5 {ledger}"
  run.here(
    f"{patients} --head lamb --max-rows-per-unit {MOST_ROWS} --out patients"
  )
  run.here(f"verify patients {ledger}")
  run.here(f"{patients} --out whole-patients")
  run.here(
    "sweep --cache caches/train --eval-cache caches/test --epsilons 1 4 --delta"
    f" 1e-5 --baseline --private-eval 2 --out private-sweep {other}"
  )
  run.here(f"verify private-sweep/{BASELINE} {other}")
  run.here(
    "evaluate private-sweep/heads/epsilon-1-draw-0 --cache caches/test"
    f" --private-eval 1 --delta 1e-5 {other}"
  )
  run.here(f"budget --cache caches/test {other}")
  cap = "--max-epsilon 3 --max-delta 1e-5"
  run.here(f"budget set --cache caches/units {cap} {ledger}")
  run.here(f"budget --cache caches/units {ledger}")
  run.here(f"{patients} --head lamb --max-rows-per-unit {MOST_ROWS} --out x", 2)
  run.here("verify caches/train --duplicates --min-cosine 0.999 --out none.csv")
  run.here("report sweep --ledger-dir ledgers")
  run.here(f"report private-sweep {other}")
  for reads in (
    "inspect caches/units",
    "verify caches/train",
    "verify caches/twice --duplicates --min-cosine 0.999",
    "verify patients",
    f"budget --cache caches/train {other}",
    "report sweep --ledger-dir ledgers",
    "train --cache caches/units --epsilon 2 --delta 1e-5 --out u"
    " --ledger-dir ledgers/more",
    "sweep --cache caches/train --eval-cache caches/test --epsilons 2 --delta"
    " 1e-5 --out json-sweep --ledger-dir ledgers",
    "compare --cache caches/train --eval-cache caches/test --epsilons 2 --delta"
    " 1e-5 --heads lamb least-squares --out compared --ledger-dir ledgers",
    "figures --cache caches/train --eval-cache caches/test --epsilons 2"
    " --num-draws 1 --out figures --ledger-dir ledgers",
    "evaluate head --cache caches/test --ledger-dir ledgers",
  ):
    run.here(f"{reads} --json")
  found = run.here(
    "verify caches/twice --duplicates --min-cosine 0.999 --out pairs.csv",
    search=False,
  )
  assert str(FIRST_ID) in found
  assert str(FIRST_ID + 19) in (run.place / "pairs.csv").read_text()
  random = "--steps.batch-size 500 --steps.sampling poisson --steps.epochs 1"
  run.here(
    "train --cache caches/train --head multi-step --epsilon 8 --delta 1e-5"
    f" {random} --out steps {other}"
  )
  run.here(f"verify steps {other}")
  run.here(f"budget --cache caches/train {other}")
  # Where the evaluation labels were private, they are not scored exactly.
  alone = "--ledger-dir ledgers/ablation"
  run.here(
    "ablate --cache caches/train --eval-cache caches/test --epsilon 4 --delta"
    f" 1e-5 --axes epochs --epochs 2 --baseline --out ablation {alone}"
  )
  run.here(f"verify ablation/{BASE}-NOT-PRIVATE {alone}")
  run.here(
    "audit --epsilon 4 --delta 1e-5 --runs 32 --canaries 16 --num-classes 2"
    " --noise-seed 1"
  )
  run.here(
    "audit --cache caches/train --canaries 200 --epsilon 4 --delta 1e-5"
    f" --noise-seed 1 {other}"
  )


def released(run: Run) -> list[pathlib.Path]:
  """Every file but the caches, which are the private data, and `BY_DESIGN`."""
  left_out = [run.place / name for name in ("features.npz", "caches")]
  return [
    f
    for f in run.place.rglob("*")
    if f.is_file()
    and not any(f.is_relative_to(folder) for folder in left_out)
    and str(f.relative_to(run.place)) not in BY_DESIGN
  ]


def without_curves(page: str) -> str:
  """The words of a page, and of its pictures: their curves have any number."""

  def words(picture: re.Match) -> str:
    svg = base64.b64decode(picture[1]).decode()
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))

  return re.sub(r"data:image/svg\+xml;base64,([\w+/=]+)", words, page)


def test_the_values_can_be_found_where_they_are(run):
  """What the search is worth: the shards do have them."""
  shards = b"".join(
    f.read_bytes() for f in (run.place / "caches/train").glob("*.array_record*")
  )
  assert np.float32(PLANTED).tobytes() * D in shards
  assert np.int64(FIRST_ID + 5).tobytes() in shards
  patterns = private_values(run.place / "features.npz")
  assert any(re.search(p, f"counts: {COUNTS[0]},") for p in patterns)
  assert any(re.search(p, f"example_id={FIRST_ID + 3}") for p in patterns)


def test_no_command_prints_them(run):
  said = without_names(run.said, run.place)
  assert len(said) > 1_000
  for pattern in private_values(run.place / "features.npz"):
    assert not re.search(pattern, said), pattern


def test_no_file_that_leaves_has_them(run):
  files = released(run)
  assert len(files) > 45
  assert all((run.place / name).is_file() for name in BY_DESIGN)
  patterns = private_values(run.place / "features.npz")
  sums = private_sums(run.place / "features.npz")
  # Of a class, or its mean, as the weights might hold them.
  arrays = [
    value.astype(dtype).tobytes()
    for value in [*sums.ravel(), *(sums / np.array(COUNTS)[:, None]).ravel()]
    for dtype in (np.float32, np.float64)
  ]
  for file in files:
    name = str(file.relative_to(run.place))
    if file.suffix in (".json", ".csv", ".md", ".jsonl", ".head", ".html"):
      text = name + without_curves(file.read_text())
    else:
      text = name
    text = without_names(text, run.place)
    for pattern in patterns:
      assert not re.search(pattern, text), (name, pattern)
    content = file.read_bytes()
    assert np.float32(PLANTED).tobytes() * 2 not in content
    for first in (FIRST_ID, FIRST_EVAL_ID, FIRST_UNIT):
      assert np.int64(first + 5).tobytes() not in content
    if file.suffix == ".safetensors":
      assert not [each for each in arrays if each in content]


def test_no_public_file_of_the_cache_has_them(run):
  names = ("cache_info.json", "dataset_info.json", "features.json")
  for cache in ("train", "test", "units"):
    for name in names:
      text = (run.place / "caches" / cache / name).read_text()
      for pattern in private_values(run.place / "features.npz"):
        assert not re.search(pattern, text), (cache, name, pattern)


def test_heads_are_not_the_exact_ones(run):
  """Every coordinate of every head has noise of its own."""
  kernels = [
    load_file(f)["kernel"].ravel()
    for f in released(run)
    if f.name == "head.safetensors"
  ]
  assert len(kernels) == 20
  assert len({kernel.tobytes() for kernel in kernels}) == 20


def test_what_holds_private_data_is_its_owner_s_alone(run):
  private = [
    *(run.place / "caches").rglob("*"),
    *(run.place / "ledgers").rglob("*"),
    *(run.place / name for name in BY_DESIGN),
  ]
  files = [f for f in private if f.is_file()]
  assert len(files) >= 20
  for file in files:
    mode = stat.S_IMODE(os.stat(file).st_mode)
    assert mode == 0o600, (file.name, oct(mode))
