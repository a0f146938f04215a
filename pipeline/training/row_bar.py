"""Progress over the rows of a cache."""

from collections.abc import Iterator, Sized
from typing import Protocol, runtime_checkable

from tqdm import tqdm

from oneshot_dp.extract.cache.block import Block
from oneshot_dp.extract.progress import step_bar


@runtime_checkable
class Rows(Sized, Protocol):
  """What is read: a cache, or a view of one."""

  def blocks(self) -> Iterator[Block]:
    """Streams the rows, every one once."""
    ...


def row_bar(rows: Sized, what: str) -> tqdm:
  """Counts all rows, whether or not they are in the sum."""
  return step_bar(what, "row", len(rows))


def counted(rows: Rows, what: str) -> Iterator[Block]:
  """The rows, with a bar while they are read."""
  with row_bar(rows, what) as bar:
    for block in rows.blocks():
      yield block
      bar.update(len(block))
