"""Files under one folder: on a disk, at gs://bucket/folder or s3://bucket/folder.

obstore speaks to the stores and tries again what was answered with 429 or 5xx;
what was cut, or reset, is tried again here. The disk is the operating system's:
obstore would neither wait for it, nor keep files to their owner, nor refuse a
FIFO. No name is ever written twice.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files

_T = TypeVar("_T")
URL = re.compile(r"(gs|s3):/+([^/]+)/*(.*)")
"""A pathlib.Path has lost the second slash."""
_WAITS = (0.1, 0.4, 1.6, 5.0)
"""Seconds between calls that obstore gave up on."""
_RETRIES: Any = {"max_retries": 8}  # waiting 0.1 s, 0.2 s …
PERMISSIONS = {
  "read": {"s3": "s3:GetObject", "gs": "storage.objects.get"},
  "list": {"s3": "s3:ListBucket", "gs": "storage.objects.list"},
  "write": {"s3": "s3:PutObject", "gs": "storage.objects.create"},
  "remove": {"s3": "s3:DeleteObject", "gs": "storage.objects.delete"},
}
"""All that is ever asked of a store, and what must be granted for it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Store:
  """A folder; `remote` is obstore's, or None on a disk."""

  place: str
  remote: Any = None

  def path(self, name: str) -> str:
    """The path of a file in it, on a disk."""
    return os.path.join(self.place, name)

  def display_path(self, name: str = "") -> str:
    """The path or URL of a file in it, or of itself, for messages."""
    return escaped(f"{self.place.rstrip('/')}/{name}" if name else self.place)


def is_url(place: str | os.PathLike) -> bool:
  """Whether it is at gs:// or s3://."""
  return URL.fullmatch(os.fspath(place)) is not None


def store_at(place: str | os.PathLike) -> Store:
  """The store of a folder on a disk, or of a URL; asks nothing yet."""
  text = os.fspath(place)
  if url := URL.fullmatch(text):
    return _remote(url[1], url[2], url[3].strip("/"))
  if "\0" in text:
    raise InputError(f"{escaped(text)} is no path.")
  return Store(os.path.abspath(os.path.expanduser(text)))


@functools.cache
def _remote(scheme: str, bucket: str, folder: str) -> Store:
  """One for each, as it holds connections; obstore's threads start here."""
  from obstore.store import GCSStore, S3Store

  options: Any = {"prefix": folder or None, "retry_config": _RETRIES}
  options["client_options"] = {"timeout": "60s", "allow_http": True}
  place = f"{scheme}://{bucket}/{folder}".rstrip("/")
  with _errors(Store(place), "", "read"):
    if scheme == "gs":
      return Store(place, GCSStore(bucket, **options))
    if importlib.util.find_spec("boto3"):  # AWS's files, single sign-on
      from obstore.auth.boto3 import Boto3CredentialProvider

      options["credential_provider"] = Boto3CredentialProvider()
    return Store(place, S3Store(bucket, **options))


def list_files(store: Store) -> dict[str, tuple[int, str]]:
  """Bytes of each file, and what tells it from a later one, by name, sorted.

  On a disk as `files.walk` has them.
  """

  def ask() -> dict[str, tuple[int, str]]:
    if store.remote is None:
      return dict(sorted(files.walk(store.place)))
    found = sorted(store.remote.list().collect(), key=lambda e: e["path"])
    return {e["path"]: (e["size"], _version(e)) for e in found}

  return _ask(store, "", "list", ask)


def _version(found: Any) -> str:
  version = found.get("e_tag") or found["last_modified"]  # quoted, or not
  return str(version).removeprefix("W/").strip('"')


def state(store: Store, name: str) -> tuple[int, str]:
  """`listed` of one file; FileNotFoundError: it is not there."""
  if store.remote is not None:
    found = _ask(store, name, "read", lambda: store.remote.head(name))
    return found["size"], _version(found)
  with _local(store, name) as file:
    status = os.fstat(file.fileno())
  return status.st_size, str(status.st_mtime_ns)


def _local(store: Store, name: str, most_bytes: int | None = None) -> BinaryIO:
  try:
    return files.open_regular(store.path(name), most_bytes)
  except InputError as e:
    if isinstance(e.__cause__, FileNotFoundError):
      raise FileNotFoundError(store.display_path(name)) from e
    raise


def read(
  store: Store, name: str, most_bytes: int = files.MOST_BYTES
) -> bytes | None:
  """A file's bytes, or None; InputError: too many, or they may not be read."""

  def get() -> bytes:
    answer = store.remote.get(name)
    if (size := answer.meta["size"]) > most_bytes:
      raise InputError(
        f"{store.display_path(name)}: {size:,} bytes are too many."
      )
    return answer.bytes().to_bytes()

  with contextlib.suppress(FileNotFoundError):
    if store.remote is not None:
      return _ask(store, name, "read", get)
    with _local(store, name, most_bytes) as file, _errors(store, name, "read"):
      return file.read(os.fstat(file.fileno()).st_size)
  return None


def read_range(
  store: Store, name: str, start: int, size: int
) -> tuple[bytes, str]:
  """Bytes of a part of a file, fewer where it ends, and its version."""

  def get() -> tuple[bytes, str]:
    part = {"range": (start, start + size)}
    answer = store.remote.get(name, options=part)
    return answer.bytes().to_bytes(), _version(answer.meta)

  if store.remote is not None:
    return _ask(store, name, "read", get)
  with _local(store, name) as file:
    file.seek(start)
    return file.read(size), str(os.fstat(file.fileno()).st_mtime_ns)


def write_if_absent(store: Store, name: str, data: bytes) -> bytes:
  """Writes a file whole, unless one of its name is there.

  Formal guarantees: of any number of writers one succeeds, and none writes
  over another's; what this call has returned, which is there now, survives a
  crash.
  """
  if store.remote is None:
    if files.write_once(store.path(name), data):
      return data
  else:
    how: Any = {"mode": "create", "use_multipart": False}
    with contextlib.suppress(FileExistsError):
      _ask(store, name, "write", lambda: store.remote.put(name, data, **how))
      return data
  # Perhaps of this very call, whose answer was lost.
  if (there := read(store, name)) is None:
    raise RunError(
      f"{store.display_path(name)} was removed meanwhile; run again."
    )
  return there


def remove(store: Store, names: Iterable[str]) -> None:
  """Removes files; those that are not there are all right."""
  for name in names:
    act, place = os.unlink, store.path(name)
    if store.remote is not None:
      act, place = store.remote.delete, name
    with contextlib.suppress(FileNotFoundError):
      _ask(store, name, "remove", functools.partial(act, place))


@contextlib.contextmanager
def local_copy(store: Store, name: str) -> Iterator[tuple[str, BinaryIO]]:
  """A path on this disk of a file, and the file, for libraries that want one.

  A copy from afar has no name. FileNotFoundError: it is not there.
  """
  if store.remote is None:
    with _local(store, name) as file:
      yield store.path(name), file
    return
  if (data := read(store, name)) is None:
    raise FileNotFoundError(store.display_path(name))
  with tempfile.TemporaryFile() as file:
    with files.disk_errors(tempfile.gettempdir()):
      file.write(data)
      file.seek(0)  # and flushes
    yield f"/dev/fd/{file.fileno()}", file


def seekable(store: Store, name: str, size: int) -> BinaryIO:
  """A file of so many bytes, of which a library reads what it needs."""
  if store.remote is None:
    return files.open_regular(store.path(name))
  return io.BufferedReader(_Ranges(store, name, size), 1 << 20)


class _Ranges(io.RawIOBase):
  mode = "rb"

  def __init__(self, store: Store, name: str, size: int):
    self._store, self.name, self._size, self._at = store, name, size, 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def seek(self, offset: int, whence: int = 0) -> int:
    self._at = max(0, (0, self._at, self._size)[whence] + offset)
    return self._at

  def readinto(self, buffer: Any) -> int:
    size = max(0, min(len(buffer), self._size - self._at))
    if size:
      buffer[:size], _ = read_range(self._store, self.name, self._at, size)
    self._at += size
    return size


def _ask(store: Store, name: str, action: str, call: Callable[[], _T]) -> _T:
  """Calls a store, and again where the answer was cut or did not come."""
  for wait in _WAITS:
    with contextlib.suppress(RunError), _errors(store, name, action):
      return call()
    time.sleep(wait)
  with _errors(store, name, action):
    return call()


@contextlib.contextmanager
def _errors(store: Store, name: str, action: str) -> Iterator[None]:
  """Says in one line what is refused; RunError: what may go well later."""
  where = store.display_path(name)
  try:
    yield
  except (FileNotFoundError, FileExistsError, InputError, RunError):
    raise
  except OSError as e:
    raise InputError(f"{where}: cannot {action} it: {e.strerror}.") from e
  except Exception as e:
    if not type(e).__module__.startswith("obstore"):
      raise
    kind, reason = type(e).__name__, str(e).split("\n")[0]  # The rest is long.
    scheme, bucket = store.place[:2], "/".join(store.place.split("/")[:3])
    if kind in ("AlreadyExistsError", "PreconditionError"):
      raise FileExistsError(where) from e
    if "169.254.169.254" in reason or "metadata.google" in reason:
      # Where virtual machines have theirs; it is asked last.
      raise InputError(f"{bucket}: no credentials; log in to the store.") from e
    if kind == "NotFoundError" and action in ("read", "remove"):
      raise FileNotFoundError(where) from e
    if kind == "NotFoundError" or "404 Not Found" in reason:
      raise InputError(f"{bucket}: there is no such bucket.") from e
    if re.search("Denied|Unauthen|403 Forb|401 Unauth", f"{kind} {reason}"):
      lacks = f"lack the permission {PERMISSIONS[action][scheme]}"
      raise InputError(f"{where}: these credentials {lacks}; grant it.") from e
    said = escaped(reason)[:300]
    raise RunError(f"{where}: {said}; run the same command again.") from e
