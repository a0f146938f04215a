"""What no name may hold, and no terminal is shown, whichever file says it."""

import itertools
import os
from typing import Any

import pytest

from oneshot_dp.configs.errors import InputError, check_text, escaped
from oneshot_dp.extract.cache.identity import BackboneIdentity
from tests.extract.caches import make_identity

BAD = [
  *map(chr, itertools.chain(range(32), range(127, 160))),  # C0, DEL, C1
  *os.fsdecode(b"\xff\x80"),
  *"\u2028\u2029",  # break lines
  *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))),  # turn them
]


def test_what_forges_a_line():
  for c in BAD:
    with pytest.raises(InputError, match="control characters") as refused:
      check_text("a word", f"cat{c}dog")
    assert str(refused.value).isascii()
    if c not in "\t\n":  # which tables are made of
      shown = escaped(f"cat{c}dog")
      assert shown.isascii()
      assert shown.isprintable()


def test_what_forges_none():
  for text in ("", "žlutý kůň", "猫 🐈", "\N{RIGHT-TO-LEFT MARK}\u200d\xa0"):
    check_text("a word", text)
    assert escaped(f"{text}\tx\ny") == f"{text}\tx\ny"


@pytest.mark.parametrize("bad", ["\x1b[2J", "\udcff", "\u2028", "\u202e"])
@pytest.mark.parametrize("place", ["dataset", "split", "class_names", "name"])
def test_no_cache_has_such_a_name(place, bad):
  """Whether it is of a flag, a folder, a column or a file of names."""
  changes: dict[str, Any] = {place: f"cat{bad}"}
  if place == "class_names":
    changes = {place: ("a", "b", "c", f"cat{bad}")}
  if place == "name":
    backbone = BackboneIdentity(name=f"cat{bad}", layer="", weights_sha256="a")
    changes = {"backbone": backbone}
  with pytest.raises(InputError, match="control characters"):
    make_identity(**changes)
