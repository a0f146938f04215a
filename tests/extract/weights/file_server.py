"""A file server on 127.0.0.1 that misbehaves as told, and notes who asked."""

import contextlib
import dataclasses
import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(kw_only=True)
class Served:
  """A file, and how it is served."""

  body: bytes
  etag: str = '"one"'
  statuses: list[int] = dataclasses.field(default_factory=list)  # given first
  # Per response: after how many bytes the connection ends.
  cuts: list[int] = dataclasses.field(default_factory=list)
  etag_of_rests: str = ""
  headers: dict[str, str] = dataclasses.field(default_factory=dict)

  @property
  def sha256(self) -> str:
    return hashlib.sha256(self.body).hexdigest()


class FileServer(http.server.ThreadingHTTPServer):
  """Serves `files`, by path; `asked` are the path, range and bytes sent."""

  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.files: dict[str, Served] = {}
    self.asked: list[tuple[str, str | None, int]] = []

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
  server: Any

  def do_GET(self) -> None:
    file = self.server.files.get(self.path)
    if file is None or file.statuses:
      status = file.statuses.pop(0) if file else 404
      self._head(
        status, {"Content-Length": "0"} | (file.headers if file else {})
      )
      return
    asked = self.headers.get("Range")
    match = re.fullmatch(r"bytes=(\d+)-\d*", asked or "")
    start, size = int(match[1]) if match else 0, len(file.body)
    body = file.body[start:]
    headers = {
      "Content-Length": str(len(body)),
      "ETag": (start and file.etag_of_rests) or file.etag,
      "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT",
    }
    if start:
      headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
    self._head(206 if start else 200, headers | file.headers)
    if self.command == "HEAD":
      return
    cut = file.cuts.pop(0) if file.cuts else None
    self.server.asked.append((self.path, asked, len(body[:cut])))
    self.wfile.write(body[:cut])
    self.close_connection = cut is not None

  do_HEAD = do_GET

  def _head(self, status: int, headers: dict[str, str]) -> None:
    self.send_response(status)
    for key, value in headers.items():
      self.send_header(key, value)
    self.end_headers()

  def log_message(self, format: str, *args: object) -> None:
    pass
