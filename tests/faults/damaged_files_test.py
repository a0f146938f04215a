"""Damaged and hostile files, and odd words: a line, and never a traceback.

FUZZ_EXAMPLES=20000 (`make fuzz`) tries many; the seeds of failures are kept in
.hypothesis, as ever.
"""

import collections
import io
import json
import os
import pathlib
import shutil
import zipfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.pipeline.cli import main

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))
FUZZ = hypothesis.settings(
  max_examples=EXAMPLES,
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
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TRIED: collections.Counter[int] = collections.Counter()


@pytest.fixture(scope="module")
def sound(
  tmp_path_factory, train_cache, eval_cache, finished_sweep
) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("fuzz") / "sound"
  shutil.copytree(finished_sweep.path, folder / "run")
  shutil.copytree(train_cache.path, folder / "cache")
  shutil.copytree(eval_cache.path, folder / "eval")
  line = f"train --cache {folder}/cache --epsilon 1 --delta 1e-5 --head lamb"
  words = f"{line} --out {folder}/head --ledger-dir {folder}/ledgers".split()
  assert main(words) == 0
  return folder


def ends_in_a_line(words: list[str], capsys) -> None:
  capsys.readouterr()
  status = main(words)
  assert status in (0, 1, 2)
  said = capsys.readouterr().err
  assert "Traceback" not in said
  assert "\x1b" not in said
  assert status == 0 or said.strip()
  TRIED[status] += 1


FILES = {
  "head/receipt.json": ["verify {}/head", "evaluate {}/head --cache {}/eval"],
  "run/results.json": ["report {}/run"],
  "run/config.json": ["report {}/run"],
  "cache/cache_info.json": ["inspect {}/cache", "verify {}/cache"],
  "cache/shards.json": ["inspect {}/cache"],
  "ledgers/*.jsonl": ["budget --cache {}/cache", "verify {}/head"],
  "ledgers/*.head": ["budget --cache {}/cache"],
}


@pytest.mark.parametrize("name", FILES)
@FUZZ
@hypothesis.given(data=st.data())
def test_json(sound, tmp_path_factory, capsys, name, data):
  folder = tmp_path_factory.mktemp("spoilt") / "all"
  shutil.copytree(sound, folder)
  (file,) = folder.glob(name)
  if data.draw(st.booleans()):
    file.write_bytes(data.draw(BYTES))
  else:
    whole = json.loads(
      file.read_text().splitlines()[0] if "jsonl" in name else file.read_text()
    )
    spoil(whole, data)
    file.write_text(json.dumps(whole))
  for line in FILES[name]:
    words = line.replace("{}", str(folder)).split()
    ledgers = [] if words[0] in ("inspect", "report") else ["--ledger-dir"]
    if words[:2] == ["verify", f"{folder}/cache"]:
      ledgers = []
    ends_in_a_line(
      [*words, *ledgers, *([f"{folder}/ledgers"] if ledgers else [])], capsys
    )
  shutil.rmtree(folder.parent)


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


@FUZZ
@hypothesis.given(data=st.data())
def test_npz(tmp_path_factory, capsys, data):
  folder = tmp_path_factory.mktemp("npz")
  file = folder / "f.npz"
  n = 3
  arrays = {
    "embedding": np.ones((n, 2), np.float32),
    "label": np.arange(n),
    "class_names": np.array(["a", "b", "c"]),
  }
  name = data.draw(st.sampled_from(list(arrays)))
  arrays[name] = data.draw(
    st.sampled_from(
      [
        np.full(n, 2**40),
        np.array(["a", "\x1b[2J", "c"]),
        np.array(["a", "b\nc", "d"]),
        np.zeros((n, 0)),
        np.full((n, 2), np.nan),
        np.full((n, 2), 1e300),
        np.array(3),
        arrays[name],
      ]
    )
  )
  if data.draw(st.booleans()):
    del arrays["class_names"]
  np.savez_compressed(file, allow_pickle=False, **arrays)
  content = bytearray(file.read_bytes())
  for _ in range(data.draw(st.integers(0, 4))):
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
      st.integers(0, 255)
    )
  file.write_bytes(content)
  words = f"import {file} --out {folder}/out".split()
  ends_in_a_line(words, capsys)
  shutil.rmtree(folder)


def test_a_bomb_is_refused_before_memory_is_asked_for(tmp_path, capsys):
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    header, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 8)}
  )
  with zipfile.ZipFile(tmp_path / "f.npz", "w") as file:
    for name in ("embedding", "label"):
      file.writestr(f"{name}.npy", header.getvalue())
  ends_in_a_line(["import", str(tmp_path / "f.npz"), "--out", "out"], capsys)


@pytest.mark.parametrize(
  "word", ["a\x1b[2J", "a\nb", os.fsdecode(b"\xff"), "a\u202eb"]
)
@pytest.mark.parametrize(
  "line",
  [
    "train --cache {c} --epsilon 1 --delta 1e-5 --ledger-dir {l} --out",
    "import f.npz --out o --dataset-name",
    "extract x --out o --split",
  ],
)
def test_words_that_no_terminal_should_show(
  tmp_path, train_cache, capsys, line, word
):
  words = line.format(c=train_cache.path, l=tmp_path / "l").split()
  assert main([*words, word]) == 2
  said = capsys.readouterr().err
  assert "holds control characters, or bytes that are not UTF-8" in said
  assert len(said.splitlines()) == 1
  assert said.isascii()
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("flags", "part"),
  [
    ("--head multi-step --steps.epochs 1000000000", "epochs=1e+09 is absurd"),
    ("--head multi-step --steps.learning-rate 1e300", "learning_rate=1e+300"),
    ("--learning-rate 1e300", "learning_rate=1e+300 is absurd"),
  ],
)
def test_absurd_requests_are_not_charged(
  tmp_path, train_cache, capsys, flags, part
):
  line = f"train --cache {train_cache.path} --epsilon 1 --delta 1e-5 {flags}"
  words = f"{line} --ledger-dir {tmp_path}/l --out {tmp_path}/out".split()
  assert main(words) == 2
  assert part in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("top1", [0.999, -5, 2])
def test_an_edited_accuracy_is_refused(sound, tmp_path, capsys, top1):
  shutil.copytree(sound / "run", tmp_path / "run")
  file = tmp_path / "run" / "results.json"
  results = json.loads(file.read_text())
  results["heads"][0]["top1"] = top1
  file.write_text(json.dumps(results))
  assert main(["report", str(tmp_path / "run")]) == 2
  assert "was edited; restore it" in capsys.readouterr().err


@pytest.mark.parametrize("body", ["raise SystemExit(0)", "raise GeneratorExit"])
def test_a_config_that_ends_python(tmp_path, capsys, body):
  (tmp_path / "c.py").write_text(body)
  assert main(["extract", f"{tmp_path}/c.py", "--out", f"{tmp_path}/out"]) == 2
  said, error = capsys.readouterr().err.splitlines()
  assert said == f"runs {tmp_path}/c.py, which is Python code"
  assert error.startswith("oneshot-dp: error: ")


def test_what_was_tried():
  """The last of this file: says how much there was."""
  print(f"{sum(TRIED.values())} damaged inputs, by exit status: {dict(TRIED)}")
