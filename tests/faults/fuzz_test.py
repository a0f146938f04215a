"""Damaged files of every format, and odd words for every flag: a line each.

FUZZ_EXAMPLES=20000 (`make fuzz`) is how many files, others in every run: what
fails says its seed, and FUZZ_SEED repeats it. One process tries all: what is
spoilt is put back, and words that were read once are not read again.
"""

import collections
import faulthandler
import functools
import json
import os
import shlex
import shutil
import time

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import safetensors.numpy
from hypothesis import strategies as st

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.shell import parser
from tests.extract import image_jobs
from tests.extract.tables import png, write_table
from tests.faults.workers import TIMEOUT, draw_once
from tests.pipeline.command_line import CONFIG

MANY = os.environ.get("FUZZ_EXAMPLES")
EXAMPLES = int(MANY or "60")
SEED = os.environ.get("FUZZ_SEED", str(time.time_ns()) if MANY else "the same")
FUZZ = hypothesis.settings(
  deadline=None,
  # To make an example smaller would take minutes: as found, it says enough.
  phases=[p for p in hypothesis.Phase if p is not hypothesis.Phase.shrink],
  suppress_health_check=list(hypothesis.HealthCheck),
)
HOSTILE = st.one_of(
  st.sampled_from(
    [None, True, -1, 0, 10**99, 1e300, "", "\x1b[2J", "a\nb", [], {}, [[]]]
  ),
  st.text(max_size=5),
  st.integers(),
  st.floats(allow_nan=False, allow_infinity=False),
)
BYTES = st.one_of(
  st.binary(max_size=60),
  st.sampled_from(
    [b"[" * 50_000, b'{"a":' * 50_000, b"1e400", b"NaN", b"\xff\xfe", b"{}"]
  ),
)
WORDS = st.one_of(
  st.sampled_from(
    [
      *("", "-1", "0", "1e400", "nan", "-inf", "9" * 40, "9" * 5000, "None"),
      *("..", "/", "/dev/null", "/dev/full", "/proc/self/mem", "~x", "a" * 300),
      *("\x1b[2J", "a\nb", os.fsdecode(b"\xff"), "a\u202eb", "{}", "--", "-"),
    ]
  ),
  st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
_IMPORT = "import {file} --out {made}/out"
_EXTRACT = (
  "extract {place}/{config} --out {made}/out --decode-threads 1"
  " --source.path {file}"
)
_PHOTOS = "extract {place}/photos.py --split all --out {made}/out"
_TRAIN = (
  "train --epsilon 1 --delta 1e-5 --ledger-dir {made}/ledgers --out {made}/out"
)
_LEDGERS = "--ledger-dir {place}/ledgers"
_VERIFY = f"verify {{place}}/head {_LEDGERS}"
_BUDGET = f"budget --cache {{place}}/cache {_LEDGERS}"
_EVALUATE = f"evaluate {{place}}/head --cache {{place}}/eval {_LEDGERS}"
_OF_CACHE = (
  "verify {place}/cache",
  f"{_TRAIN} --head lamb --cache {{place}}/cache",
)
_START = f"{_TRAIN} --cache {{place}}/cache --head multi-step --start {{file}}"
_PREDICT = "predict {place}/small-head {file} --out {made}/out.csv"
FILES: dict[str, tuple[int, list[str]]] = {
  "head/receipt.json": (16, [_VERIFY, _EVALUATE]),
  "head/head.safetensors": (16, [_VERIFY, _EVALUATE]),
  "head/README.md": (4, [_VERIFY]),
  "run/results.json": (4, ["report {place}/run"]),
  "run/config.json": (4, ["report {place}/run"]),
  "cache/cache_info.json": (12, ["inspect {place}/cache", *_OF_CACHE]),
  "cache/shards.json": (12, ["inspect {place}/cache", *_OF_CACHE]),
  "cache/dataset_info.json": (4, [*_OF_CACHE]),
  "cache/features.json": (4, [*_OF_CACHE]),
  "cache/*.array_record-00000*": (8, [*_OF_CACHE]),
  "cache/*content_keys*": (8, [*_OF_CACHE]),
  "ledgers/*.jsonl": (16, [_BUDGET, _VERIFY]),
  "ledgers/*.head": (12, [_BUDGET]),
  "features.npz": (16, [_IMPORT]),
  "features.parquet": (8, [_IMPORT]),
  "start.npz": (6, [_START]),
  "start.safetensors": (6, [_START]),
  "images.npz": (4, [_EXTRACT.replace("{config}", "config.py"), _PREDICT]),
  "images.parquet": (4, [_PREDICT]),
  "images.arrow": (4, [_PREDICT]),
  "images.tar": (4, [_PREDICT]),
  "photos/a/0.png": (4, [_PREDICT]),
  "photos/a/1.jpg": (4, [_PREDICT]),
  "units.csv": (2, [f"{_PHOTOS} --source.units {{file}}"]),
  "weights.npz": (2, [f"{_PHOTOS} --backbone.weights {{file}}"]),
  "weights.safetensors": (2, [f"{_PHOTOS} --backbone.weights {{file}}"]),
}
"""What is spoilt, its share of the examples, and who reads it."""
_ALL = sum(share for share, _ in FILES.values())
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TRIED: collections.Counter[str] = collections.Counter()
DIFFERENT: set[int] = set()
"""Digests of the files, and of the words."""


@pytest.fixture(scope="module")
def place(tmp_path_factory, train_cache, eval_cache, finished_sweep):
  """One of everything that is read."""
  folder = tmp_path_factory.mktemp("fuzz") / "place"
  shutil.copytree(finished_sweep.path, folder / "run")
  shutil.copytree(train_cache.path, folder / "cache")
  shutil.copytree(eval_cache.path, folder / "eval")
  (folder / "config.py").write_text(CONFIG)
  photos = f'ImageFolderSource(root="{folder}/photos")'
  (folder / "photos.py").write_text(
    CONFIG.replace('ArraysSource(path="images.npz")', photos)
  )
  image_jobs.write_npz(folder / "images.npz", 70)
  images = image_jobs.pixels(8)
  for kind in ("parquet", "arrow", "tar"):
    pngs = [png(image) for image in images]
    label = [0, 1] * 4
    write_table(folder / f"images.{kind}", pngs, ["a", "b"], label=label)
  (folder / "photos/a").mkdir(parents=True)
  for name, image in zip(("0.png", "1.jpg"), images, strict=False):
    image_jobs.Image.fromarray(image).save(folder / "photos/a" / name)
  (folder / "units.csv").write_text("file,patient\na/0.png,1\na/1.jpg,2\n")
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(6, 3)).astype("f")
  classes = train_cache.info.class_names
  arrays = {"embedding": rows, "label": np.arange(6) % 3}
  np.savez(
    folder / "features.npz", class_names=np.array(["a", "b", "c"]), **arrays
  )
  pyarrow.parquet.write_table(
    pa.table({"embedding": rows.tolist(), "label": arrays["label"]}),
    folder / "features.parquet",
  )
  d = train_cache.info.feature_dim
  start = rng.normal(size=(d, len(classes))).astype("f")
  np.savez(folder / "start.npz", **dict(zip(classes, start.T, strict=True)))
  for name in ("start", "weights"):
    safetensors.numpy.save_file(
      {"kernel": start}, folder / f"{name}.safetensors"
    )
  np.savez(folder / "weights.npz", kernel=start)
  for line in [
    f"train --epsilon 1 --delta 1e-5 --cache {folder}/cache --head lamb"
    f" --out {folder}/head --ledger-dir {folder}/ledgers",
    f"extract {folder}/config.py --source.path {folder}/images.npz --split"
    f" train --out {folder}/small --decode-threads 1",
    f"train --epsilon 1 --delta 1e-5 --cache {folder}/small --head lamb"
    f" --out {folder}/small-head --ledger-dir {folder}/others",
  ]:
    assert main(line.split()) == 0
  return folder


@pytest.fixture(scope="module", autouse=True)
def quick():
  """Pictures are drawn once, and words are read once."""
  read = functools.cache(lambda *words: parse(words, COMMANDS))
  with pytest.MonkeyPatch.context() as patch:
    parse = parser.parse
    patch.setattr(parser, "parse", lambda words, _: read(*words))
    draw_once(patch)
    yield


@pytest.fixture(autouse=True)
def seed():
  """What fails is shown with it."""
  print(f"FUZZ_SEED={SEED}")


def ends_in_a_line(words: list[str], capsys, what: str) -> None:
  capsys.readouterr()
  faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=2)
  try:
    status = main(words)
  except SystemExit as stop:  # --help among odd words
    status = stop.code
  finally:
    faulthandler.cancel_dump_traceback_later()
  assert status in (0, 1, 2)
  said = capsys.readouterr().err
  assert "Traceback" not in said
  assert "\x1b" not in said
  assert said.count("oneshot-dp: error: ") == bool(status)
  TRIED[f"{what}: status {status}"] += 1


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file(place, capsys, name):
  share, lines = FILES[name]
  file = max(place.glob(name))
  content, made = file.read_bytes(), place / "made"

  @hypothesis.seed(f"{SEED} {name}")
  @hypothesis.settings(FUZZ, max_examples=max(1, EXAMPLES * share // _ALL))
  @hypothesis.given(data=st.data())
  def damaged(data):
    try:
      other = spoilt(content, file.suffix, data)
      DIFFERENT.add(hash((name, other)))
      file.write_bytes(other)
      for line in lines:
        made.mkdir()
        words = line.format(place=place, made=made, file=file).split()
        ends_in_a_line(words, capsys, name)
        shutil.rmtree(made)
    finally:
      shutil.rmtree(made, ignore_errors=True)
      file.write_bytes(content)

  damaged()


def spoilt(content: bytes, suffix: str, data: st.DataObject) -> bytes:
  """Something else; what is JSON stays JSON, every other time."""
  how = data.draw(st.integers(0, 7))
  if how == 0:
    return data.draw(BYTES)
  if how < 5 and suffix in (".json", ".jsonl", ".head", ".safetensors"):
    start, end = 0, len(content.splitlines()[0])
    if suffix == ".safetensors":
      start, end = 8, 8 + int.from_bytes(content[:8], "little")
    elif suffix == ".json":
      end = len(content)
    value = json.loads(content[start:end])
    spoil(value, data)
    text = json.dumps(value).encode()
    if suffix == ".safetensors":
      return len(text).to_bytes(8, "little") + text + content[end:]
    return text + content[end:]
  found = bytearray(content)
  at = data.draw(st.integers(0, len(content) - 1))
  some = data.draw(st.integers(1, 40))
  if how == 5:
    del found[at:]
  elif how == 6:
    del found[at : at + some]
  else:
    found[at : at + some] = data.draw(st.binary(max_size=some))
  return bytes(found)


def spoil(value: object, data: st.DataObject) -> None:
  """Puts something else somewhere into JSON, or takes something away."""
  while isinstance(value, dict | list) and value:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = data.draw(st.sampled_from(list(keys)))
    inner = value[key]
    if not (isinstance(inner, dict | list) and inner) or data.draw(
      st.booleans()
    ):
      if data.draw(st.integers(0, 4)):
        value[key] = data.draw(HOSTILE)
      else:
        del value[key]
      return
    value = inner


LINES = {
  "inspect": "{place}/cache",
  "verify": "{place}/head",
  "budget": "--cache {place}/cache",
  "budget set": "--cache {place}/cache --max-epsilon 1 --max-delta 1e-5",
  "evaluate": "{place}/head --cache {place}/eval",
  "import": "{place}/features.npz --out {made}/out",
  "predict": "{place}/small-head {place}/photos --out {made}/out.csv",
  "export": "{place}/head --to {made}/out",
  "train": "--cache {place}/cache --epsilon 1 --delta 1e-5 --out {made}/out",
}


@pytest.mark.parametrize("command", LINES)
def test_odd_words(place, capsys, monkeypatch, command):
  made = place / "made"
  flags = sorted(parser.flags_of(COMMANDS[command]))

  @hypothesis.seed(f"{SEED} {command}")
  @hypothesis.settings(FUZZ, max_examples=max(3, EXAMPLES // 100))
  @hypothesis.given(flag=st.sampled_from(flags), word=WORDS, data=st.data())
  def odd(flag, word, data):
    made.mkdir()
    monkeypatch.chdir(made)
    line = LINES[command].format(place=place, made=made)
    words = [*command.split(), *shlex.split(line)]
    if data.draw(st.booleans()):
      words += [flag, word]
    else:
      words[data.draw(st.integers(1, len(words) - 1))] = word
    DIFFERENT.add(hash(tuple(words)))
    try:
      ends_in_a_line(words, capsys, f"words of {command}")
    finally:
      shutil.rmtree(made)

  odd()


def test_what_was_tried():
  """The last of this file: says how much there was."""
  for what, count in sorted(TRIED.items()):
    print(f"{count:6} {what}")
  print(
    f"FUZZ_SEED={SEED}: {len(DIFFERENT)} different files and lines of words,"
    f" {sum(TRIED.values())} commands"
  )
