"""An object store on the loopback that misbehaves as it is told.

Its objects are in memory, or a real server's that it passes requests on to.
It speaks as much of S3 and of GCS's XML API as obstore asks of them.
"""

import contextlib
import functools
import html
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oneshot_dp.extract import storage

BUCKET = "data"
_REAL = {
  "s3": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
  "gs": "github.com/fsouza/fake-gcs-server@v1.56.1",
}
Answer = tuple[int, list[tuple[str, str]], bytes]


class ObjectServer(http.server.ThreadingHTTPServer):
  """`fault(kind)`, by method or LIST, says what happens to a request.

  Nothing; a status to answer with, or a status and the code of an error;
  "reset" (RST, nothing is done), "cut" (half of the answer comes), "lose" (it
  is done, but no answer comes) or "slow" (it is done after two seconds).
  """

  daemon_threads = True

  def __init__(self, ask: Callable[..., Answer] | None = None):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.objects: dict[str, bytes] = {}
    self.lock = threading.Lock()
    self.seen: list[str] = []
    self.fault: Callable[[str], Any] = lambda kind: None
    self.ask = ask or self.remember
    self.page_names = 1000
    self.url = f"http://127.0.0.1:{self.server_port}"

  def handle_error(self, request, client_address) -> None:
    pass  # a client that was killed, or a connection that was reset

  def calls(self) -> list[str]:
    """The requests since the last time: method, LIST apart, and name."""
    seen = self.seen
    self.seen = []
    return seen

  def remember(self, method: str, path: str, headers, body: bytes) -> Answer:
    url = urllib.parse.urlsplit(path)
    name = urllib.parse.unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
    query = urllib.parse.parse_qs(url.query)
    with self.lock:
      if "list-type" in query:
        return self._list(query)
      if method == "PUT":
        once = "if-none-match" in headers
        once |= headers.get("x-goog-if-generation-match") == "0"
        if once and name in self.objects:
          return 412, [], b"<Error><Code>PreconditionFailed</Code></Error>"
        self.objects[name] = body
        return 200, _version(body), b""
      if method == "POST":  # of S3: some names at once
        keys = re.findall("<Key>(.*?)</Key>", body.decode())
        for key in keys:
          self.objects.pop(key, None)
        gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return 200, [], f"<DeleteResult>{gone}</DeleteResult>".encode()
      if method == "DELETE":
        self.objects.pop(name, None)
        return 204, [], b""
      data = self.objects.get(name)
      if data is None:
        return 404, [], b"<Error><Code>NoSuchKey</Code></Error>"
    found = _version(data)
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
    if wanted:
      start = int(wanted[1])
      end = min(int(wanted[2]) + 1, len(data))
      found.append(("content-range", f"bytes {start}-{end - 1}/{len(data)}"))
      return 206, found, data[start:end]
    return 200, found, data

  def _list(self, query: dict[str, list[str]]) -> Answer:
    """A page of names, which begins after one that is given."""
    prefix = query.get("prefix", [""])[0]
    after = query.get("continuation-token", query.get("start-after", [""]))[0]
    names = []
    for name in sorted(self.objects):
      if name.startswith(prefix) and name > after:
        names.append(name)
    if "delimiter" in query:
      return 200, [], _folders(prefix, names)
    page = names[: self.page_names]
    is_cut = "true" if len(names) > len(page) else "false"
    text = f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>"
    if len(names) > len(page):
      token = html.escape(page[-1])
      text += f"<NextContinuationToken>{token}</NextContinuationToken>"
    for name in page:
      data = self.objects[name]
      text += (
        f"<Contents><Key>{html.escape(name)}</Key><Size>{len(data)}</Size>"
        f'<ETag>"{hash(data)}"</ETag>'
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
      )
    return 200, [], f"{text}</ListBucketResult>".encode()


def _folders(prefix: str, names: list[str]) -> bytes:
  """A page of the folders below a prefix, of which some of the names are."""
  folders = set()
  for name in names:
    folder, slash, _ = name.removeprefix(prefix).partition("/")
    if slash:
      folders.add(f"{prefix}{folder}/")
  text = "<ListBucketResult><IsTruncated>false</IsTruncated>"
  for folder in sorted(folders):
    text += f"<CommonPrefixes><Prefix>{html.escape(folder)}</Prefix>"
    text += "</CommonPrefixes>"
  return f"{text}</ListBucketResult>".encode()


def _version(data: bytes) -> list[tuple[str, str]]:
  date = "Mon, 01 Jan 2024 00:00:00 GMT"
  found = {"etag": str(hash(data)), "x-goog-generation": "1"}
  return [*found.items(), ("last-modified", date)]


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def _serve(self) -> None:
    server: Any = self.server
    kind = self.command
    if "list-type" in self.path:
      kind = "LIST"
    server.seen.append(f"{kind} {urllib.parse.unquote(self.path)}")
    body = self.rfile.read(int(self.headers.get("content-length", 0)))
    fault = server.fault(kind)
    if fault == "reset":
      linger = struct.pack("ii", 1, 0)
      self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
      self.close_connection = True
      # No shutdown: it would send a FIN first.
      server.shutdown_request = lambda request: request.close()
      self.connection.close()
      return
    if isinstance(fault, tuple):
      status, code = fault
      text = f"<Error><Code>{code}</Code></Error>"
      self._answer(status, [], text.encode())
      return
    if fault == "slow":
      time.sleep(2)
    if isinstance(fault, int):
      self._answer(fault, [], b"")
      return
    answer = server.ask(self.command, self.path, self.headers, body)
    self.close_connection = fault in ("lose", "cut")
    if fault != "lose":
      self._answer(*answer, cut=fault == "cut")

  do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

  def _answer(self, status, headers, data, cut=False) -> None:
    self.send_response(status)
    dropped = ("content-length", "transfer-encoding", "connection", "date")
    for name, value in headers:
      if name.lower() not in dropped:
        self.send_header(name, value)
    length = str(len(data))
    if self.command == "HEAD":  # has that of the answer to a GET
      for name, value in headers:
        if name.lower() == "content-length":
          length = value
    self.send_header("content-length", length)
    self.end_headers()
    if cut:
      data = data[: len(data) // 2]
    if self.command != "HEAD":
      self.wfile.write(data)

  def log_message(self, format, *args) -> None:
    pass


@contextlib.contextmanager
def running(server: ObjectServer) -> Iterator[ObjectServer]:
  thread = threading.Thread(target=server.serve_forever, args=(0.05,))
  thread.start()
  try:
    yield server
  finally:
    server.shutdown()
    thread.join()
    server.server_close()


@contextlib.contextmanager
def real_s3(folder) -> Iterator[None]:
  """A real server of S3, which this process and those it starts are told of."""
  with (
    real_server("s3", folder) as ask,
    running(ObjectServer(ask)) as server,
  ):
    os.environ |= {
      "AWS_ENDPOINT_URL_S3": server.url,
      "AWS_ACCESS_KEY_ID": "loopback",
      "AWS_SECRET_ACCESS_KEY": "loopback-secret-0",
      "AWS_REGION": "us-east-1",
    }
    yield


@contextlib.contextmanager
def served(monkeypatch, folder, ask=None) -> Iterator[ObjectServer]:
  """A server that obstore finds, and no connection from before or after."""
  account = folder / "account.json"
  with running(ObjectServer(ask)) as made:
    keys = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    keys |= {"gcs_base_url": made.url, "disable_oauth": True}
    account.write_text(json.dumps(keys))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "loopback")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "loopback-secret-0")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
    storage._remote.cache_clear()
    yield made
    storage._remote.cache_clear()


def _passed_on(scheme, port, method, path, headers, body) -> Answer:
  """What a real server at a port answers."""
  asked = method
  sent = {**headers, "connection": "close"}
  if scheme == "gs":
    method, path = _as_json_api(method, path, headers)
    sent["host"] = f"127.0.0.1:{port}"  # S3's is signed
  upstream = http.client.HTTPConnection("127.0.0.1", port)
  with contextlib.closing(upstream):
    upstream.request(method, path, body=body, headers=sent)
    answer = upstream.getresponse()
    found = answer.getheaders()
    data = answer.read()
  if (method, asked) == ("POST", "PUT") and answer.status < 300:
    made = json.loads(data)
    made = made.get("resource", made)
    generation = ("x-goog-generation", made["generation"])
    found = [("etag", made["etag"]), generation]
    data = b""
  return answer.status, found, data


def _as_json_api(method: str, path: str, headers) -> tuple[str, str]:
  """What fake-gcs-server has of a write: GCS's JSON API, not its XML API."""
  url = urllib.parse.urlsplit(path)
  _, bucket, *rest = url.path.split("/", 2)
  if method != "PUT" or not rest or url.query:
    return method, path
  query = ""
  if "x-goog-if-generation-match" in headers:
    query = f"&ifGenerationMatch={headers['x-goog-if-generation-match']}"
  place = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={rest[0]}"
  return "POST", place + query


@contextlib.contextmanager
def real_server(scheme, folder):
  """What a real server answers, which Go builds the first time."""
  if not shutil.which("go"):
    pytest.skip("Go, which builds the server, is not installed")
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
  (folder / "objects" / BUCKET).mkdir(parents=True)
  keys = {"ROOT_ACCESS_KEY": "loopback", "ROOT_SECRET_KEY": "loopback-secret-0"}
  address = f"127.0.0.1:{port}"
  objects = folder / "objects"
  words = {
    "s3": f"--quiet --keep-alive --port {address} posix {objects}",
    "gs": f"-backend filesystem -filesystem-root {objects} -scheme http"
    f" -host 127.0.0.1 -port {port} -public-host {address}",
  }[scheme]
  command = f"go run {_REAL[scheme]} {words}"
  with (folder / "log").open("w") as log:
    process = subprocess.Popen(
      command.split(),
      # Go leaves its temporary files behind when it is killed.
      env=os.environ | keys | {"GOTMPDIR": str(folder)},
      stdout=log,
      stderr=log,
      start_new_session=True,
    )
  try:
    while process.poll() is None:
      with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        break
      time.sleep(0.1)
    else:
      pytest.skip(f"{command}: {(folder / 'log').read_text()[-200:]}")
    yield functools.partial(_passed_on, scheme, port)
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()
