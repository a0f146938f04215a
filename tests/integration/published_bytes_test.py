"""What leaves tells neighbouring data sets apart by the noisy releases alone.

Every byte that the commands print or write, with names and modes of files, is
collected on data sets that differ in one row, with the same bits of noise and
the clock stopped. What differs between neighbours must be a place that also
moves with the noise, on one data set, or with the fresh random bits of a
ledger, on one data set and with the same noise; and these places are known.
Answers are read as text and as what --json prints, and pictures as what is
drawn.
"""

import contextlib
import csv
import dataclasses
import datetime
import functools
import html
import io
import json
import os
import pathlib
import re
import shutil
import stat
import types
from collections.abc import Iterator

import matplotlib
import numpy as np
import pytest
import safetensors
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure

from oneshot_dp.linear_dp.heads.multi_step import rule
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise import source
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.registry import COMMANDS as COMMANDS_BY_NAME
from oneshot_dp.pipeline.ledger import ledger
from oneshot_dp.pipeline.report import page
from oneshot_dp.pipeline.report import pictures as drawn
from oneshot_dp.pipeline.runs import accuracy_plot, run
from oneshot_dp.pipeline.shell import parser, terminal
from oneshot_dp.pipeline.shell.answer import Answer

pytestmark = pytest.mark.slow

N, D, K = 120, 4, 3
CHANGED = 14
FRESH = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}\.?")
"""Names of entries in a ledger, which have random bits of their own, and
digests of what holds them."""
TRAINED = "--cache caches/train --delta 1e-3 --ledger-dir ledgers"
SCORED = f"{TRAINED} --eval-cache caches/public"
COMMANDS = f"""
train {TRAINED} --epsilon 4 --out head
train {TRAINED} --epsilon 4 --balanced --out balanced
train {TRAINED} --epsilon 4 --start caches/start.npz --out started
sweep {SCORED} --epsilons 0.5 2 --num-draws 2 --out sweep
sweep {TRAINED} --eval-cache caches/test --epsilons 1 --private-eval 0.5 \
--head least-squares --out counted
compare {SCORED} --epsilons 2 --heads lamb whitened multi-step --out compared
compare --choose {TRAINED} --epsilons 4 --heads lamb least-squares --out chosen
verify chosen --ledger-dir ledgers
figures {TRAINED.replace("--delta", "--deltas")} --eval-cache caches/public \
--epsilons 1 --num-draws 1 --out figures
ablate {SCORED} --epsilon 4 --axes optimizer --out ablation
evaluate head --cache caches/public --ledger-dir ledgers
evaluate head --cache caches/test --private-eval 0.5 --delta 1e-3 \
--ledger-dir ledgers
report sweep
verify head --ledger-dir ledgers
verify head --ledger-dir nowhere
budget set --cache caches/train --max-epsilon 90 --max-delta 1e-3 \
--ledger-dir ledgers
budget --cache caches/train --ledger-dir ledgers
"""

Places = dict[str, object]


def rows(change: str) -> dict[str, np.ndarray]:
  """Features of three splits, where one row of two of them may be another."""
  rng = np.random.default_rng(3)
  found: dict[str, np.ndarray] = {}
  for split, n in (("train", N), ("test", N), ("public", 400)):
    label = rng.integers(0, K, n)
    embedding = np.eye(K, D)[label] + rng.standard_normal((n, D))
    if change and split != "public":
      label[CHANGED] = (label[CHANGED] + 1) % K
      embedding[CHANGED] = 3 * np.arange(D) - len(split)
      if (change, split) == ("null", "train"):
        embedding[CHANGED] = 0
    found[f"{split}_embedding"] = embedding.astype(np.float32)
    found[f"{split}_label"] = label
  return found


class FixedClock(datetime.datetime):
  """It is always the same moment."""

  @classmethod
  def now(cls, tz=None):
    return cls(2024, 5, 6, tzinfo=tz)


@contextlib.contextmanager
def noise_of(seed: int, *, draws: bool = False) -> Iterator[None]:
  """The system's generator gives these bits to noise, and to noise alone.

  Heads of many steps have few.
  """
  bits, batches = np.random.default_rng(seed), rule.make_batches
  with pytest.MonkeyPatch.context() as patch:
    few = functools.partial(WhiteningRule, num_steps=3)
    patch.setattr(whitened, "WhiteningRule", few)
    patch.setattr(
      rule,
      "make_batches",
      lambda asked, *sizes: batches(
        dataclasses.replace(asked, epochs=asked.epochs or 2), *sizes
      ),
    )
    patch.setattr(source, "os", types.SimpleNamespace(urandom=bits.bytes))
    clock = types.SimpleNamespace(datetime=FixedClock, UTC=datetime.UTC)
    for module in (ledger, run):
      patch.setattr(module, "datetime", clock)
    if not draws:
      patch.setattr(accuracy_plot, "save_figure", save_as_words)
    patch.setattr(page, "draw_picture", draw_once)
    yield


class Drawn(RendererBase):
  """What is drawn, as words and bytes; all letters have one size."""

  def __init__(self):
    super().__init__()
    self.words: list[str] = []
    self.shapes: list[bytes] = []

  def draw_path(self, gc, path, transform, rgbFace=None):
    look = repr((gc.get_rgb(), gc.get_linewidth(), rgbFace)).encode()
    self.shapes += [transform.transform_path(path).vertices.tobytes(), look]

  def draw_image(self, gc, x, y, im, transform=None):
    self.shapes += [repr((x, y)).encode(), im.tobytes()]

  def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
    self.words.append(s)

  def get_text_width_height_descent(self, s, prop, ismath):
    return 6.0 * len(s), 10.0, 2.0


def save_as_words(figure: Figure, path: pathlib.Path, **_: object) -> None:
  """A picture as its words and the rest, once for its formats."""
  if path.suffix == ".png":
    drawn = Drawn()
    figure.set_layout_engine("none")
    figure.draw(drawn)
    words = "".join(f"<text>{html.escape(word)}" for word in drawn.words)
    shapes = b"".join(drawn.shapes).hex()
    path.with_suffix(".svg").write_text(f"{words}<path>{shapes}")


def draw_once(plan: drawn.Plan, path: pathlib.Path, **_) -> drawn.Picture:
  with matplotlib.rc_context(drawn._LOOK):
    save_as_words(drawn._figure(plan, drawn.WIDE, []), path.with_suffix(".png"))
  return drawn.Picture(plan.alt, "", "", "", "", width=1, height=1)


def published(folder: pathlib.Path, change: str, seed: int) -> Places:
  """All that leaves, place by place."""
  # Paths of the machine are printed: they are the same for all.
  shutil.rmtree(folder, ignore_errors=True)
  make_caches(folder, change)
  found: Places = {}
  with contextlib.chdir(folder), noise_of(seed):
    for i, line in enumerate(COMMANDS.strip().splitlines()):
      answer, err = answer_of(line)
      name = f"{i} {line.split()[0]}"
      found |= words(f"{name}: ", answer.text)
      facts = json.loads(answer.json())
      facts.pop("seconds", None)  # how long a run took
      found |= flat(f"{name} --json: ", facts)
      found |= words(f"{name} (stderr): ", err)
    for path in sorted(pathlib.Path().rglob("*")):
      if path.parts[0] not in ("caches", "ledgers", "rows.npz"):
        found[f"{path}: mode"] = stat.filemode(path.stat().st_mode)
        if path.is_file():
          found |= content(path)
  return found


def make_caches(folder: pathlib.Path, change: str) -> pathlib.Path:
  folder.mkdir()
  np.savez(folder / "rows.npz", allow_pickle=False, **rows(change))
  with contextlib.chdir(folder):
    for split in ("train", "test", "public"):
      # The row that is changed is in its part as it is, and else outside.
      name = "[:60%]" if split != "public" else " --dataset-name zoo"
      say(
        f"import rows.npz --split {split}{name} --num-classes {K}"
        f" --backbone-name net --out caches/{split}"
      )
  start = {str(c): np.eye(D)[c] for c in range(K)}
  np.savez(folder / "caches/start.npz", allow_pickle=False, **start)
  return folder


def say(line: str) -> tuple[str, str]:
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    assert main(line.split()) == 0, err.getvalue()
  return out.getvalue(), err.getvalue()


def answer_of(line: str) -> tuple[Answer, str]:
  """What a command prints of itself, with --json and without, and notes."""
  request, err = parser.parse(line.split(), COMMANDS_BY_NAME), io.StringIO()
  with contextlib.redirect_stderr(err), terminal.as_asked(request.output):
    answer = request.command.run(request.flags)
  return answer, err.getvalue() + "\n".join(answer.faults)


def content(path: pathlib.Path) -> Places:
  prefix = f"{path}: "
  match path.suffix:
    case ".json":
      return flat(prefix, json.loads(path.read_text()))
    case ".csv":
      with path.open(newline="") as file:
        return flat(prefix, list(csv.DictReader(file)))
    case ".safetensors":
      with safetensors.safe_open(path, "np") as file:
        return flat(
          prefix,
          {"metadata": file.metadata()}
          | {name: file.get_tensor(name).tobytes() for name in file.keys()},  # noqa: SIM118
        )
    case ".svg":
      return drawing(prefix, path.read_text())
    case ".md" | ".html":
      return words(prefix, path.read_text())
  return {f"{prefix}bytes": path.read_bytes()}


def flat(prefix: str, value: object) -> Places:
  """Every number and word of JSON by its place."""
  if isinstance(value, dict | list):
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found: Places = {f"{prefix}length": len(value)}
    for key, each in inner:
      found |= flat(f"{prefix}{key} ", each)
    return found
  return {prefix: value}


def words(prefix: str, text: str) -> Places:
  """Every word of a text by its place, but for how long a run took."""
  text = re.sub(r" in [0-9.]+ s;", " in TIME;", text)
  return {
    f"{prefix}{i}:{j} ": word
    for i, line in enumerate(text.splitlines())
    for j, word in enumerate(re.split(r'[\s<>"{}]+', line))
  }


def drawing(prefix: str, svg: str) -> Places:
  """All that it says by its place; numbers of axes, and shapes, as a whole.

  How many ticks an axis has follows from the points, and moves all behind.
  """
  said = re.findall(r"<text[^>]*>([^<]*)", svg)
  numbers = [text for text in said if not re.search("[a-z]", text)]
  shapes = re.sub(r"<text[^>]*>[^<]*", "", svg)
  found = words(prefix, "\n".join(t for t in said if t not in numbers))
  return found | {f"{prefix}numbers": numbers, f"{prefix}shapes": shapes}


def different(some: Places, others: Places) -> set[str]:
  return {
    place
    for place in some.keys() | others.keys()
    if some.get(place) != others.get(place)
  }


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, set[str]]:
  """What moves with fresh bits, with the noise, and with a row."""
  folder = tmp_path_factory.mktemp("published")
  first, again, *noisier = (
    published(folder / "run", "", seed) for seed in (1, 1, 2, 3)
  )
  found = {
    "fresh": different(first, again),
    "noise": set().union(*(different(first, other) for other in noisier)),
  }
  for change in ("null", "another"):
    changed = published(folder / "run", change, 1)
    found[change] = different(first, changed)
  # No time, size or path of the machine.
  for place in found["fresh"]:
    assert FRESH.fullmatch(str(first.get(place))), place
    assert FRESH.fullmatch(str(again.get(place))), place
  return found


@pytest.mark.parametrize("change", ["null", "another"])
def test_a_row_moves_what_the_noise_moves(places, change):
  fresh = places["fresh"]
  assert any("receipt.json: composition" in place for place in fresh)
  moved = places[change] - fresh
  assert sorted(moved - places["noise"]) == []
  assert {
    f"{head}/head.safetensors: kernel "
    for head in ("head", "sweep/heads/epsilon-2-draw-0")
  } <= moved


def less_names(path: pathlib.Path) -> bytes:
  """A file without the names of entries in a ledger, and other digests."""
  return re.sub(rb"[0-9a-f]{64}", b"", path.read_bytes())


@pytest.mark.parametrize(
  ("study", "umask"),
  [("sweep", 0), ("compare", 0o022), ("figures", 0), ("ablate", 0o022)],
)
def test_what_a_baseline_moves_is_its_owner_s_alone(tmp_path, study, umask):
  """Tables, pictures and pages as well: accuracy is a function of weights."""
  line = next(c for c in COMMANDS.splitlines() if c.startswith(f"{study} "))
  line = re.sub("--heads .* --out", "--heads lamb --out", line)
  out = line.split()[-1]
  found = []
  for flag in ("", " --baseline"):
    folder = make_caches(tmp_path / f"run{flag}", "")
    with contextlib.chdir(folder), noise_of(1, draws=True):
      before = os.umask(umask)
      try:
        say(f"{line}{flag}")
        if study in ("sweep", "compare"):
          say(f"report {out}")
      finally:
        os.umask(before)
    paths = [path for path in (folder / out).rglob("*") if path.is_file()]
    found.append({path.relative_to(folder): path for path in paths})
  without, with_baseline = found
  assert without.keys() < with_baseline.keys()
  shared = {
    name
    for name, path in with_baseline.items()
    if name in without and less_names(path) == less_names(without[name])
  }
  public = {
    name
    for name, path in with_baseline.items()
    if stat.S_IMODE(path.stat().st_mode) != 0o600
  }
  assert public <= shared
  assert {name.name for name in public} == {
    "README.md",
    "head.safetensors",
    "receipt.json",
  }
  for path in without.values():
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
