import concurrent.futures
import dataclasses
import json
import os
import sys

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage import typed_json
from oneshot_dp.extract.storage.typed_json import parse_json, read_content
from tests.extract.refusals import refused


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  name: str
  size: float = 0.5


@pytest.mark.parametrize(
  ("content", "found"),
  [
    (b'[{"name": "a"}]', [Row(name="a")]),
    (b'[{"name": "a", "size": 2, "more": []}]', [Row(name="a", size=2.0)]),
    (b'[{"old": "a"}]', [Row(name="a")]),
  ],
)
def test_what_is_read(content, found):
  names = {"old": "name"}
  assert parse_json("a.json", content, list[Row], names=names) == found


@pytest.mark.parametrize(
  ("content", "said"),
  [
    (b"{}", "Expected `array`, got `object`"),
    (b"[{}]", "missing required field `name` - at `$[0]`"),
    (b'[{"name": 1}]', "Expected `str`, got `int` - at `$[0].name`"),
    (b'[{"name": "a", "size": true}]', "got `bool` - at `$[0].size`"),
    (b'[{"name": "a", "size": NaN}]', "NaN is no number"),
    (b'[{"name": "a", "size": -Infinity}]', "-Infinity is no number"),
    (b'[{"name": "a", "size": 1e400}]', "1e400 is no number"),
    (b'[{"name": "a", "size": 1%s}]' % (b"0" * 400), "is no number"),
    (b'[{"name": "a", "name": "b"}]', "a field twice"),
    (b"[" * 50_000, "recursion depth"),
    (b'{"a":' * 50_000, "recursion depth"),
    (b"", "Expecting value"),
    (b"\xff[]", "can't decode"),
    (b'"%s"' % (b"x" * 10_000), "Expected `array`, got `str`"),
  ],
)
def test_what_is_refused(content, said):
  with pytest.raises(InputError) as caught:
    parse_json("a.json", content, list[Row], "make it again")
  line = str(caught.value)
  assert line.startswith("a.json is damaged (")
  assert line.endswith("); make it again.")
  assert said in line
  assert len(line) < 400


def test_no_more_is_read_than_memory_should_hold(tmp_path, monkeypatch):
  monkeypatch.setattr(typed_json, "MOST_BYTES", 10)
  (tmp_path / "large").write_bytes(b"[" + b" " * 10 + b"]")
  os.mkfifo(tmp_path / "pipe")
  for name, said in (
    ("large", "12 bytes are too many"),
    ("pipe", "it is no file"),
    ("none", "No such file"),
  ):
    with refused(rf"{name} cannot be read: {said}"):
      read_content(tmp_path / name)


def test_threads_may_meet_a_type_at_once():
  """Without a lock msgspec ends the process in the first ten types or so."""
  fields = [(f"field{i}", int) for i in range(20)]
  content = json.dumps({"row": {name: 1 for name, _ in fields}}).encode()
  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  try:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
      for _ in range(100):
        inner = dataclasses.make_dataclass("Inner", fields)
        kind = dataclasses.make_dataclass("Outer", [("row", inner)])
        list(pool.map(lambda i, k=kind: parse_json(i, content, k), range(8)))
  finally:
    sys.setswitchinterval(interval)
