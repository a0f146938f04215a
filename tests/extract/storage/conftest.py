import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from oneshot_dp.extract.storage.objects import object_store
from tests.extract.storage import object_servers
from tests.extract.storage.object_servers import ACCESS, BUCKET, SECRET, Proxy


@pytest.fixture(scope="session")
def proxies(tmp_path_factory) -> Iterator[Callable[[str], Proxy]]:
  """A server of each kind, started where it is asked for."""
  with contextlib.ExitStack() as running:

    @functools.cache
    def start(scheme: str) -> Proxy:
      folder = tmp_path_factory.mktemp(scheme)
      try:
        port = running.enter_context(object_servers.server(scheme, folder))
      except object_servers.NoServerError as e:
        pytest.skip(str(e))
      proxy = running.enter_context(Proxy(scheme, port))
      thread = threading.Thread(target=proxy.serve_forever)
      thread.start()
      running.callback(thread.join)
      running.callback(proxy.shutdown)
      return proxy

    yield start


@pytest.fixture
def place(
  request, proxies, monkeypatch, tmp_path
) -> Iterator[tuple[str, Proxy | None]]:
  """Where a store may be, and the proxy before it. For indirect parameters."""
  if request.param == "disk":
    yield str(tmp_path / "store"), None
    return
  proxy = proxies(request.param)
  for name, value in environment(proxy, tmp_path).items():
    monkeypatch.setenv(name, value)
  object_store.cache_clear()
  proxy.forget()
  yield f"{request.param}://{BUCKET}/{tmp_path.name}", proxy
  proxy.forget()


def environment(server: Proxy, folder) -> dict[str, str]:
  """Credentials, where the tools of the stores look for them."""
  account = folder / "account.json"
  account.write_text(
    json.dumps(
      {
        "gcs_base_url": server.url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
      }
    )
  )
  return {
    "AWS_ENDPOINT_URL_S3": server.url,
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "GOOGLE_SERVICE_ACCOUNT": str(account),
  }
