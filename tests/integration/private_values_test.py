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

    `search` is False where the output is private by design.
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


UNITS, OTHER, ALONE = "ledgers/units", "ledgers/private", "ledgers/ablation"
# Releases per patient and per example are not of one ledger.
PATIENTS = (
  f"train --cache caches/units --epsilon 2 --delta 1e-5 --ledger-dir {UNITS}"
)
BOTH = "--cache caches/train --eval-cache caches/test --delta 1e-5"
HERE = f"""
inspect caches/train
verify caches/train
train --cache caches/train --epsilon 2 --delta 1e-5 --out head
verify head
evaluate head --cache caches/test
budget --cache caches/train
inspect caches/units
verify caches/units
{PATIENTS} --head lamb --max-rows-per-unit {MOST_ROWS} --out patients
verify patients --ledger-dir {UNITS}
{PATIENTS} --out whole-patients
sweep {BOTH} --epsilons 1 4 --baseline --private-eval 2 --out private-sweep\
 --ledger-dir {OTHER}
verify private-sweep/{BASELINE} --ledger-dir {OTHER}
evaluate private-sweep/heads/epsilon-1-draw-0 --cache caches/test\
 --private-eval 1 --delta 1e-5 --ledger-dir {OTHER}
budget --cache caches/test --ledger-dir {OTHER}
budget set --cache caches/units --max-epsilon 3 --max-delta 1e-5\
 --ledger-dir {UNITS}
budget --cache caches/units --ledger-dir {UNITS}
verify caches/train --duplicates --min-cosine 0.999 --out none.csv
report sweep
report private-sweep --ledger-dir {OTHER}
inspect caches/units --json
verify caches/train --json
verify caches/twice --duplicates --min-cosine 0.999 --json
verify patients --json --ledger-dir {UNITS}
budget --cache caches/train --ledger-dir {OTHER} --json
report sweep --json
train --cache caches/units --epsilon 2 --delta 1e-5 --out u\
 --ledger-dir ledgers/more --json
sweep {BOTH} --epsilons 2 --out json-sweep --json
compare {BOTH} --epsilons 2 --heads lamb least-squares --out compared --json
figures {BOTH.replace("--delta", "--deltas")} --epsilons 2 --num-draws 1\
 --out figures --json
evaluate head --cache caches/test --json
train --cache caches/train --head multi-step --epsilon 8 --delta 1e-5\
 --steps.batch-size 500 --steps.sampling poisson --steps.epochs 1 --out steps\
 --ledger-dir {OTHER}
verify steps --ledger-dir {OTHER}
budget --cache caches/train --ledger-dir {OTHER}
ablate {BOTH} --epsilon 4 --axes epochs --epochs 2 --baseline --out ablation\
 --ledger-dir {ALONE}
verify ablation/{BASE}-NOT-PRIVATE --ledger-dir {ALONE}
audit --epsilon 4 --delta 1e-5 --runs 32 --canaries 16 --num-classes 2\
 --noise-seed 1
audit --cache caches/train --canaries 200 --epsilon 4 --delta 1e-5\
 --noise-seed 1 --ledger-dir {OTHER}
"""
"""All that reads private rows; where evaluation labels were private, they are
not scored exactly by the same ledger."""
FAIL = f"""
evaluate head --cache caches/test --ledger-dir nowhere
train --cache caches/train --epsilon -1 --delta 1e-5 --out x
{PATIENTS} --head lamb --max-rows-per-unit {MOST_ROWS} --out x
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
  place = tmp_path_factory.mktemp("private")
  write_features(place / "features.npz")
  run = Run(place)
  words = ("", "", " --unit-name patient", "")
  for split, unit in zip(
    ("train", "test", "units", "twice"), words, strict=True
  ):
    run.here(
      f"import features.npz --split {split} --backbone-name net"
      f" --out caches/{split}{unit}"
    )
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("ONESHOT_DP_LEDGER_DIR", str(place / "ledgers"))
    run(f"sweep {BOTH} --epsilons 0.5 1 4 --num-draws 2 --out sweep")
    for line in HERE.replace("\\\n", "").strip().splitlines():
      run.here(line)
    # What fails must not tell either.
    run("evaluate head --cache caches/train", 2)
    for line in FAIL.strip().splitlines():
      run.here(line, 2)
    found = run.here(
      "verify caches/twice --duplicates --min-cosine 0.999 --out pairs.csv",
      search=False,
    )
  assert str(FIRST_ID) in found
  assert str(FIRST_ID + 19) in (place / "pairs.csv").read_text()
  return run


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
  for cache in ("train", "test", "units"):
    for name in ("cache_info.json", "dataset_info.json", "features.json"):
      files.append(run.place / "caches" / cache / name)
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


def test_heads_are_not_the_exact_ones(run):
  """Every coordinate of every head has noise of its own."""
  kernels = [
    load_file(f)["kernel"].ravel()
    for f in released(run)
    if f.name == "head.safetensors"
  ]
  assert len(kernels) == 19
  assert len({kernel.tobytes() for kernel in kernels}) == 19


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
