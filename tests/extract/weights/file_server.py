"""A file server on 127.0.0.1 that misbehaves as told, and notes who asked."""

import contextlib
import dataclasses
import hashlib
import http.server
import re
import threading
import time
from collections.abc import Iterator
from email.message import Message


@dataclasses.dataclass(kw_only=True)
class Served:
  """A file, and how it is served."""

  body: bytes
  etag: str = '"one"'
  last_modified: str = "Wed, 01 Jan 2025 00:00:00 GMT"
  ranges: bool = True  # whether Range is understood
  statuses: list[int] = dataclasses.field(default_factory=list)  # given first
  etags_later: list[str] = dataclasses.field(default_factory=list)
  # Per response, or in every one: after how many bytes the connection ends.
  cuts: list[int] = dataclasses.field(default_factory=list)
  always_cut: int | None = None
  headers: dict[str, str] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0  # before the body

  @property
  def sha256(self) -> str:
    return hashlib.sha256(self.body).hexdigest()


@dataclasses.dataclass(kw_only=True)
class Asked:
  """A request, and how many bytes of the file were sent for it."""

  method: str
  path: str
  headers: Message
  status: int
  sent: int = 0


class FileServer(http.server.ThreadingHTTPServer):
  """Serves `files`, by path; what was asked is in `asked`."""

  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.files: dict[str, Served] = {}
    self.asked: list[Asked] = []

  @property
  def url(self) -> str:
    return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def running() -> Iterator[FileServer]:
  with FileServer() as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
      yield server
    finally:
      server.shutdown()
      thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  @property
  def _owner(self) -> FileServer:
    assert isinstance(self.server, FileServer)
    return self.server

  def do_GET(self) -> None:
    file = self._owner.files.get(self.path.partition("?")[0])
    if file is None or file.statuses:
      status = file.statuses.pop(0) if file else 404
      self._note(status)
      self._head(
        status, {"Content-Length": "0"} | (file.headers if file else {})
      )
      return
    start = self._start(file)
    body = file.body[start:]
    headers = {"Content-Length": str(len(body))}
    etag = file.etags_later.pop(0) if start and file.etags_later else file.etag
    headers |= {"ETag": etag, "Last-Modified": file.last_modified}
    if start:
      size = len(file.body)
      headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
    asked = self._note(206 if start else 200)
    self._head(asked.status, headers | file.headers)
    if self.command == "HEAD":
      return
    time.sleep(file.seconds)
    cut = file.cuts.pop(0) if file.cuts else file.always_cut
    asked.sent = len(body[:cut])
    self.wfile.write(body[:cut])
    self.close_connection = cut is not None

  do_HEAD = do_GET

  def _start(self, file: Served) -> int:
    asked = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", ""))
    return int(asked[1]) if asked and file.ranges else 0

  def _note(self, status: int) -> Asked:
    asked = Asked(
      method=self.command, path=self.path, headers=self.headers, status=status
    )
    self._owner.asked.append(asked)
    return asked

  def _head(self, status: int, headers: dict[str, str]) -> None:
    self.send_response(status)
    for key, value in headers.items():
      self.send_header(key, value)
    self.end_headers()

  def log_message(self, format: str, *args: object) -> None:
    pass
