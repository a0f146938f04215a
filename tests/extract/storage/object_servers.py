"""Object stores on the loopback: real servers, built by Go, behind a proxy."""

import contextlib
import fcntl
import http.client
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parents[3]
_MODULES = {
  "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
  "fake-gcs-server": "github.com/fsouza/fake-gcs-server@v1.56.1",
}
BUCKET = "data"
ACCESS, SECRET = "loopback", "loopback-secret-0"
STRANGER = "stranger"  # another account, with the same secret


class NoServerError(Exception):
  """Why there is none."""


def built(program: str) -> pathlib.Path:
  """The program, made once in build/go, by whichever test comes first."""
  module = _MODULES[program]
  folder = ROOT / "build" / "go" / module.rpartition("@")[2]
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / f"{program}.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (folder / program).is_file():
      if not shutil.which("go"):
        raise NoServerError("Go, which builds the server, is not installed")
      made = subprocess.run(
        ["go", "install", module],
        env={**os.environ, "GOBIN": str(folder)},
        capture_output=True,
        text=True,
        check=False,
      )
      if made.returncode:
        reason = made.stderr.strip().splitlines()[-1]
        raise NoServerError(f"go install {module}: {reason}")
  return folder / program


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


@contextlib.contextmanager
def server(scheme: str, folder: pathlib.Path) -> Iterator[int]:
  """A server with one empty bucket; yields its port."""
  port = _free_port()
  (folder / "objects" / BUCKET).mkdir(parents=True)
  environment = dict(os.environ)
  if scheme == "s3":
    (folder / "iam").mkdir()
    environment |= {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
    command = [
      *(built("versitygw"), "--quiet", "--keep-alive"),
      *("--iam-dir", folder / "iam", "--port", f"127.0.0.1:{port}"),
      *("posix", folder / "objects"),
    ]
  else:
    command = [
      *(built("fake-gcs-server"), "-backend", "filesystem"),
      *("-filesystem-root", folder / "objects", "-scheme", "http"),
      *("-host", "127.0.0.1", "-port", str(port), "-log-level", "error"),
      *("-public-host", f"127.0.0.1:{port}"),
    ]
  with (folder / "log").open("w") as log:
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
  try:
    for _ in range(600):
      with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        break
      time.sleep(0.1)
    if scheme == "s3":
      stranger = ("-a", STRANGER, "-s", SECRET, "-r", "user")
      subprocess.run(
        [
          *(built("versitygw"), "admin", "-a", ACCESS, "-s", SECRET),
          *("-er", f"http://127.0.0.1:{port}", "create-user", *stranger),
        ],
        check=True,
        capture_output=True,
      )
    yield port
  finally:
    process.kill()
    process.wait()


class Proxy(http.server.ThreadingHTTPServer):
  """Passes requests on, and does to them what `fault` says.

  `fault` is given the number and the method of a request and returns nothing,
  a status to answer with, "drop" (half of the answer comes), "lose" (it is
  done, but no answer comes) or "slow".
  """

  daemon_threads = True

  def __init__(self, scheme: str, upstream: int):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.is_gcs = scheme == "gs"
    self.upstream = upstream
    self.fault: Callable[[int, str], int | str | None] = lambda n, method: None
    self.seen: list[tuple[str, str, dict[str, str]]] = []
    self.lock = threading.Lock()
    self.bytes_per_second: float | None = None  # of each answer

  @property
  def url(self) -> str:
    return f"http://127.0.0.1:{self.server_port}"

  def forget(self) -> None:
    self.seen.clear()
    self.fault = lambda n, method: None

  def handle_error(self, request, client_address) -> None:
    pass  # a client that was killed


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  @property
  def proxy(self) -> Proxy:
    assert isinstance(self.server, Proxy)
    return self.server

  def _pass_on(self) -> None:
    with self.proxy.lock:
      self.proxy.seen.append((self.command, self.path, dict(self.headers)))
      number = len(self.proxy.seen) - 1
    body = self.rfile.read(int(self.headers.get("content-length", 0)))
    fault = self.proxy.fault(number, self.command)
    if isinstance(fault, int):
      self._answer(fault, [], b"")
      return
    status, headers, data = self._ask(body)
    if fault == "lose":
      self.close_connection = True
    elif fault == "drop":
      self._answer(status, headers, data, sent=len(data) // 2)
      self.close_connection = True
    else:
      if fault == "slow":
        time.sleep(0.5)
      self._answer(status, headers, data)

  do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on

  def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    method, path = self.command, self.path
    if self.proxy.is_gcs:
      method, path = _as_json_api(method, path, self.headers)
    upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream)
    with contextlib.closing(upstream):
      headers = {**self.headers, "connection": "close"}
      if self.proxy.is_gcs:  # Else it is signed.
        headers["host"] = f"127.0.0.1:{self.proxy.upstream}"
      upstream.request(method, path, body=body, headers=headers)
      answer = upstream.getresponse()
      headers = answer.getheaders()
      data = answer.read()
    if (method, self.command) == ("POST", "PUT") and answer.status < 300:
      made = json.loads(data)
      made = made.get("resource", made)
      headers = [
        ("etag", made["etag"]),
        ("x-goog-generation", made["generation"]),
      ]
      data = b""
      if "x-goog-copy-source" in self.headers:
        data = b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"
    return answer.status, headers, data

  def _answer(self, status, headers, data, sent=None) -> None:
    self.send_response(status)
    dropped = ("content-length", "transfer-encoding", "connection", "date")
    for name, value in headers:
      if name.lower() not in dropped:
        self.send_header(name, value)
    lengths = [v for n, v in headers if n.lower() == "content-length"]
    length = lengths[0] if self.command == "HEAD" and lengths else len(data)
    self.send_header("content-length", str(length))
    self.end_headers()
    data = data[:sent]
    per_second = self.proxy.bytes_per_second or 1e12
    start = time.monotonic()
    for at in range(0, len(data), 1 << 18):
      time.sleep(max(0.0, start + at / per_second - time.monotonic()))
      self.wfile.write(data[at : at + (1 << 18)])

  def log_message(self, format, *args) -> None:
    pass


def _as_json_api(method: str, path: str, headers) -> tuple[str, str]:
  """What fake-gcs-server has of a write: GCS's JSON API, not its XML API."""
  url = urllib.parse.urlsplit(path)
  _, bucket, *rest = url.path.split("/", 2)
  if method != "PUT" or not rest or url.query:
    return method, path
  query = ""
  if "x-goog-if-generation-match" in headers:
    query = f"&ifGenerationMatch={headers['x-goog-if-generation-match']}"
  if "x-goog-copy-source" in headers:
    _, name = headers["x-goog-copy-source"].lstrip("/").split("/", 1)
    name = urllib.parse.quote(urllib.parse.unquote(name), safe="")
    place = f"/storage/v1/b/{bucket}/o/{name}/rewriteTo/b/{bucket}/o/{rest[0]}"
    return "POST", f"{place}?{query[1:]}"
  place = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={rest[0]}"
  return "POST", place + query
