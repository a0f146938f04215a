"""Whoever adds a head adds a file here."""

import pathlib

import pytest

from oneshot_dp.linear_dp.heads.registry import KINDS


@pytest.mark.parametrize(
  "kind", [kind.mechanism.KIND for kind in KINDS if kind.methods]
)
def test_every_head_is_held_to_the_contract(kind):
  path = pathlib.Path(__file__).parent / f"{kind.replace('-', '_')}_test.py"
  assert "(HeadContract)" in path.read_text().replace("PerExample, ", "")
