"""Where tests of stores run: on a disk, in served stores and in real ones."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.extract.object_server import BUCKET, ObjectServer, served

STORE_KINDS = [
  "s3",
  "gs",
  pytest.param("real-s3", marks=pytest.mark.stores),
  pytest.param("real-gs", marks=pytest.mark.stores),
]
STORES = pytest.mark.parametrize("place", STORE_KINDS, indirect=True)
EVERYWHERE = pytest.mark.parametrize(
  "place", ["disk", *STORE_KINDS], indirect=True
)


class Place(NamedTuple):
  """A folder that does not exist yet, and the server, if it is not a disk."""

  url: str
  server: ObjectServer | None


@contextlib.contextmanager
def open_place(
  kind: str, folder: pathlib.Path, ask_real: Callable, patch
) -> Iterator[Place]:
  """A place of a kind; `ask_real(scheme)` asks a server that is real."""
  if kind == "disk":
    yield Place(str(folder / "store"), None)
    return
  scheme = kind.removeprefix("real-")
  ask = None
  path = "some/cache"
  if kind != scheme:
    ask = ask_real(scheme)
    path = f"{folder.parent.name}/{folder.name}"  # one server serves all tests
  with served(patch, folder, ask) as server:
    yield Place(f"{scheme}://{BUCKET}/{path}", server)
