from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.block import RowBlock, checked
from tests.linear_dp.blocks import (
  Block,
  in_blocks,
  make_block,
  random_block,
  with_row,
)

K, D = 5, 4
# Recognisable if printed.
SECRET_LABEL = 48_151_623
SECRET_VALUE = 7656.0


def private_block() -> Block:
  """40 rows whose embedding and label would be seen in a message."""
  rows = np.full((40, D), SECRET_VALUE, np.float32)
  return make_block(rows, [SECRET_LABEL] * 40)


def passed(blocks, **changes) -> list[RowBlock]:
  said: dict[str, Any] = {
    "feature_dim": D,
    "num_classes": SECRET_LABEL + 1,
    "num_examples": 40,
  }
  return list(checked(blocks, **said | changes))


@pytest.mark.parametrize("sizes", [(40,), (1,), (7, 3), (16, 0, 5)])
def test_good_rows_pass_as_they_are(sizes):
  block = private_block()
  given = list(in_blocks(block, sizes))
  got = passed(given)
  assert len(got) == len(given)
  assert all(a is b for a, b in zip(got, given, strict=True))


def test_any_order_of_rows():
  block = random_block(40, D, K)
  passed([block[np.random.default_rng(0).permutation(40)]], num_classes=K)


def refusals():
  """What is wrong, the blocks, and the message."""
  block = private_block()
  yield "width", [block.but(embedding=block.embedding[:, :3])], "shape (40, 3)"
  flat = block.embedding.ravel()
  yield "flat", [block.but(embedding=flat)], "shape (160,), not (40, 4)"
  short = block.but(embedding=block.embedding[:9])
  yield "fewer embeddings", [short], "shape (9, 4), not (40, 4)"
  for name in ("embedding_norm", "example_id"):
    column = getattr(block, name)
    short = block.but(**{name: column[:9]})
    yield f"fewer {name}", [short], f"{name} of shape (9,), not (40,)"
    wide = block.but(**{name: column[:, None]})
    yield f"wide {name}", [wide], f"{name} of shape (40, 1), not (40,)"
  wide = block.but(label=block.label[:, None])
  yield "wide label", [wide], "label of shape (40, 1), not (40,)"
  for norm in (np.nan, np.inf, -np.inf, -1, -1e-30):
    bad = with_row(block, 17, embedding_norm=norm)
    yield f"norm {norm}", in_blocks(bad, (16,)), "example_id=1051: its embedd"
  for label in (-1, SECRET_LABEL + 1, 2**31 - 1, -(2**31)):
    bad = with_row(block, 17, label=label)
    yield f"label {label}", in_blocks(bad, (16,)), "example_id=1051: its label"
  for other in (18, 39):  # of the same block, and of another
    ids = with_row(block, other, example_id=block.example_id[17])
    blocks = in_blocks(ids, (20,))
    yield f"twice, {other}", blocks, "example_id=1051 comes more than once"
  yield "missing", in_blocks(block[:39], (16,)), "gave 39 rows where"
  more = [block, block[:1].but(example_id=np.array([7]))]
  yield "one too many", more, "gave 41 rows where its metadata says 40"
  yield "no blocks", [], "no rows"
  yield "empty blocks", [block[:0], block[:0]], "no rows"


REFUSED = {case: (list(blocks), said) for case, blocks, said in refusals()}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_refusals(case):
  blocks, said = REFUSED[case]
  with pytest.raises(InputError) as caught:
    passed(blocks)
  message = str(caught.value)
  assert said in message
  assert "\n" not in message
  # Of its limit, K, every label may know; of a label none may.
  for secret in (f"{SECRET_LABEL} ", "label=", "7656", "-1", "2147483647"):
    assert secret not in message
  assert caught.value.__cause__ is caught.value.__context__ is None


def test_no_rows_are_refused_even_where_none_were_said():
  with pytest.raises(InputError, match="no rows"):
    passed([], num_examples=0)


def test_a_damaged_block_is_never_given_out():
  good, bad = private_block(), with_row(private_block(), 0, label=-1)
  pass_ = checked(
    [good, bad],
    feature_dim=D,
    num_classes=SECRET_LABEL + 1,
    num_examples=80,
  )
  assert next(pass_) is good
  with pytest.raises(InputError, match="example_id=1000"):
    next(pass_)


def test_ids_are_remembered_where_a_reader_uses_its_memory_again():
  block = private_block()
  ids = np.empty(20, np.int64)

  def read():
    for part in in_blocks(block, (20,)):
      ids[:] = part.example_id
      yield part.but(example_id=ids)

  assert len(passed(read())) == 2
