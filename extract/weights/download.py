"""One file over HTTP, grown under a `.part` name and resumed where it stopped.

Beside the part lies what the server said of the file, so that a later run asks
for the missing bytes of that very file (RFC 9110, If-Range) or starts anew.
"""

import contextlib
import dataclasses
import pathlib
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping

import requests

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.storage.durable_files import disk_errors, write_json
from oneshot_dp.extract.storage.typed_json import read_json

_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, to read
_CHUNK_BYTES = 1 << 18
_DENIED = (401, 403, 404, 410)
_PASSING = (408, 425, 429)
_BROKEN = (
  requests.ConnectionError,
  requests.Timeout,
  requests.exceptions.ChunkedEncodingError,
)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")

Authorize = Callable[[requests.PreparedRequest], requests.PreparedRequest]
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remote:
  """Where a file is, and how to ask for it.

  `url` may hold secrets, so messages show `name`; `remedy` says what to do
  where the server denies it. `authorize` adds credentials to a request; they
  are dropped where a redirect leads to another host.
  """

  url: str
  name: str
  remedy: str
  authorize: Authorize | None = None


def is_trustworthy(url: str) -> bool:
  """Whether what comes from a URL is what its server sent: TLS or this host."""
  parts = urllib.parse.urlsplit(url)
  return parts.scheme == "https" or (
    parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS
  )


def without_secrets(url: str) -> str:
  """A URL without user, password, query and fragment."""
  parts = urllib.parse.urlsplit(url)
  host = parts.netloc.rpartition("@")[2]
  return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _File:
  """What a server says of a file: its versions, as in the headers, and size."""

  etag: str | None = None
  last_modified: str | None = None
  total: int | None = None

  @property
  def validator(self) -> str | None:
    """The value for If-Range, which a weak ETag may not be."""
    weak = self.etag is None or self.etag.startswith("W/")
    return self.last_modified if weak else self.etag


class _TransferBroken(Exception):
  """The transfer stopped for a reason that may pass."""


class _Session(requests.Session):
  """Follows redirects only to where nobody on the way can change the file."""

  def get_redirect_target(self, resp: requests.Response) -> str | None:
    target = super().get_redirect_target(resp)
    if target and not is_trustworthy(urllib.parse.urljoin(resp.url, target)):
      resp.close()
      raise InputError(
        f"{without_secrets(resp.url)} redirects to {without_secrets(target)}, "
        "which is not https://; download the file by hand and give its path."
      )
    return target


def fetch(remote: Remote, part: pathlib.Path) -> None:
  """Completes `part`, and tries again while the connection is at fault.

  Attempts are counted anew whenever more has arrived than ever before. What the
  part holds from an earlier call is continued; only one process at a time may
  call it for a part.

  Raises:
    InputError: the server denies the file, or it cannot be asked for it.
    RunError: the network or the disk keeps failing; a later call continues.
  """
  failures, most = 0, 0
  with _Session() as session:
    while True:
      try:
        return _transfer(session, remote, part)
      except _TransferBroken as error:
        reason = str(error)
      held = _held(part)
      failures = 1 if held > most else failures + 1
      most = max(most, held)
      if failures == _ATTEMPTS:
        total = _noted(part).total or "unknown"
        raise RunError(
          f"{remote.name}: {reason}; {held} of {total} bytes are "
          "here: run the same command again to resume."
        )
      time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (failures - 1))


def note_path(part: pathlib.Path) -> pathlib.Path:
  """The file beside a part that says what it is a part of."""
  return part.with_name(part.name + ".json")


def _transfer(session: _Session, remote: Remote, part: pathlib.Path) -> None:
  file = _noted(part)
  held = _held(part)
  if held and held == file.total:
    return
  # Lengths are those of the file itself only where it is not compressed.
  headers = {"Accept-Encoding": "identity"}
  if held and file.validator:
    headers |= {"Range": f"bytes={held}-", "If-Range": file.validator}
  with _answer(session, remote, headers) as response:
    if response.status_code == 200:
      held, file = 0, _described(response.headers)
      _start(part, file)
    elif not _continues(response, held, file):
      _start(part, _File())
      raise _TransferBroken("the server did not send the missing bytes")
    with (
      disk_errors(part),
      part.open("ab") as output,
      step_bar(
        remote.name.rpartition("/")[2],
        "B",
        file.total,
        initial=held,
        unit_divisor=1024,
      ) as bar,
    ):
      for chunk in _chunks(response):
        output.write(chunk)
        bar.update(len(chunk))
  held = _held(part)
  if file.total is not None and held != file.total:
    if held > file.total:
      _start(part, _File())
    raise _TransferBroken("the server did not send the length it announced")


@contextlib.contextmanager
def _answer(
  session: requests.Session, remote: Remote, headers: Mapping[str, str]
) -> Iterator[requests.Response]:
  """The response, once it is one that has bytes of the file."""
  try:
    response = session.get(
      remote.url,
      headers=headers,
      auth=remote.authorize,
      stream=True,
      timeout=_TIMEOUT_SECONDS,
    )
  except _BROKEN as error:
    # Not chained: the library's messages hold the URL with its secrets.
    raise _TransferBroken(_reason(error)) from None
  except requests.RequestException as error:
    problem = type(error).__name__
    raise InputError(f"{remote.name}: {problem}; check the address.") from None
  with response:
    status = response.status_code
    if status in _DENIED:
      raise InputError(f"{remote.name}: HTTP {status}; {remote.remedy}.")
    if status in _PASSING or status >= 500:
      raise _TransferBroken(f"HTTP {status}")
    if status not in (200, 206, 416):
      raise InputError(f"{remote.name}: HTTP {status}; check the address.")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
      raise InputError(
        f"{remote.name} is sent compressed ({encoding}), though that was "
        "declined; download the file by hand and give its path."
      )
    yield response


def _chunks(response: requests.Response) -> Iterator[bytes]:
  try:
    yield from response.iter_content(_CHUNK_BYTES)
  except _BROKEN as error:
    raise _TransferBroken(_reason(error)) from None


def _continues(response: requests.Response, held: int, file: _File) -> bool:
  """Whether the body is the rest of the same file."""
  span = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
  if response.status_code != 206 or not span:
    return False
  start, total = span.groups()
  answered = dataclasses.replace(
    _described(response.headers), total=None if total == "*" else int(total)
  )
  pairs = zip(vars(answered).values(), vars(file).values(), strict=True)
  differs = any(None not in pair and pair[0] != pair[1] for pair in pairs)
  return int(start) == held and not differs


def _described(headers: Mapping[str, str]) -> _File:
  length = headers.get("Content-Length", "")
  return _File(
    etag=headers.get("ETag"),
    last_modified=headers.get("Last-Modified"),
    total=int(length) if length.isdecimal() else None,
  )


def _held(part: pathlib.Path) -> int:
  return part.stat().st_size if part.exists() else 0


def _start(part: pathlib.Path, file: _File) -> None:
  """Empties the part; old bytes never lie beside the note of a new file."""
  with disk_errors(part):
    part.unlink(missing_ok=True)
    write_json(note_path(part), dataclasses.asdict(file))
    part.touch()


def _noted(part: pathlib.Path) -> _File:
  """What the part is a part of; nothing is known where the note is damaged."""
  try:
    return read_json(note_path(part), _File)
  except InputError:
    return _File()


def _reason(error: BaseException | None) -> str:
  """What the operating system says, or that the connection broke."""
  if isinstance(error, requests.Timeout):
    return "the server does not answer"
  while error is not None:
    if isinstance(error, OSError) and error.errno and error.strerror:
      return error.strerror
    error = error.__cause__ or error.__context__
  return "the connection broke"
