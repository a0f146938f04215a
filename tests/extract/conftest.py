"""Places of files: on a disk, or a store that a server of this test serves."""

import contextlib
import functools

import pytest

from tests.extract.object_server import real_server
from tests.extract.stores import open_place


@pytest.fixture(scope="session")
def ask_real(tmp_path_factory):
  """Returns a function that starts the real server of a scheme, once."""
  with contextlib.ExitStack() as servers:

    @functools.cache
    def start(scheme):
      folder = tmp_path_factory.mktemp(f"real-{scheme}")
      return servers.enter_context(real_server(scheme, folder))

    yield start


@pytest.fixture
def place(request, tmp_path, ask_real, monkeypatch):
  """A folder that does not exist yet, and the server, if it is not a disk."""
  with open_place(request.param, tmp_path, ask_real, monkeypatch) as opened:
    yield opened


@pytest.fixture
def no_waits(monkeypatch):
  """What fails is tried again at once."""
  from oneshot_dp.extract import object_store, storage

  monkeypatch.setattr(storage, "_WAITS", (0.01,) * 4)
  monkeypatch.setitem(object_store.RETRIES, "max_retries", 0)
  storage._remote.cache_clear()
