"""A folder in an object store: gs://bucket/folder or s3://bucket/folder.

Through obstore, Python's door to Arrow's object_store. It finds credentials
where the stores' own tools do (the environment, Google's application default
credentials, metadata servers; AWS's files and single sign-on if boto3 is there)
and tries again what was dropped, or answered with 429 or 5xx.
"""

import contextlib
import datetime
import errno
import functools
import importlib.util
import pathlib
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import (
  Callable,
  Generator,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import GCSStore, S3Store

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.storage.fetch_ahead import Buffer, fetched_ahead

# A larger file is uploaded in parts.
_ONE_PUT_BYTES = 64 << 20
# How often a lock's holder says that it lives; it is dead after three times.
_BEAT_SECONDS = 5.0
_RETRIES = {
  "max_retries": 8,
  "retry_timeout": datetime.timedelta(seconds=120),
  "backoff": {
    "init_backoff": datetime.timedelta(milliseconds=100),
    "max_backoff": datetime.timedelta(seconds=10),
    "base": 2,
  },
}


_T = TypeVar("_T")


class ObjectPath(pathlib.PosixPath):
  """A URL that is passed on, joined and printed as paths are."""

  def __str__(self) -> str:
    return super().__str__().replace(":/", "://", 1)

  def __fspath__(self) -> str:
    return str(self)

  def absolute(self) -> "ObjectPath":
    return self

  def resolve(self, strict: bool = False) -> "ObjectPath":
    return self


@functools.cache
def object_store(scheme: str, bucket: str, folder: str) -> "ObjectStore":
  """The store of a URL; one for each, as it holds connections."""
  return ObjectStore(scheme, bucket, folder.strip("/"))


class ObjectStore:
  """Objects whose names start with `folder/`.

  No ACL is sent: who may read them is the bucket's to say.
  """

  def __init__(self, scheme: str, bucket: str, folder: str):
    self.path: pathlib.Path = ObjectPath(f"{scheme}://{bucket}/{folder}")
    options: dict[str, Any] = {
      "retry_config": _RETRIES,
      "client_options": {"timeout": "60s", "allow_http": True},
    }
    with _errors(self.path):
      if scheme == "gs":
        self._store = GCSStore(bucket, prefix=folder, **options)
      else:
        if importlib.util.find_spec("boto3"):
          from obstore.auth.boto3 import Boto3CredentialProvider

          options["credential_provider"] = Boto3CredentialProvider()
        self._store = S3Store(bucket, prefix=folder, **options)

  def sizes(self, folder: str = "", *, deep: bool = False) -> dict[str, int]:
    prefix = f"{folder}/" if folder else None
    if deep:
      found = self._ask(
        folder, lambda: obstore.list(self._store, prefix).collect()
      )
      folders = []
    else:
      listed = self._ask(
        folder, lambda: obstore.list_with_delimiter(self._store, prefix)
      )
      found, folders = listed["objects"], listed["common_prefixes"]
    start = len(prefix or "")
    return {f"{name.strip('/')}/"[start:]: 0 for name in folders} | {
      object_["path"][start:]: object_["size"] for object_ in found
    }

  def state(self, name: str) -> tuple[int, str]:
    """Bytes of an object, and what tells it from another of its name."""
    found = self._ask(name, lambda: obstore.head(self._store, name))
    return found["size"], str(_version(found))

  def part(self, name: str, start: int, end: int) -> tuple[bytes, str]:
    """Bytes of an object, from a place up to another, and its version."""
    options: Any = {"range": (start, end)}

    def get() -> tuple[bytes, str]:
      found = obstore.get(self._store, name, options=options)
      return found.bytes().to_bytes(), str(_version(found.meta))

    return self._ask(name, get)

  def read(self, name: str, most: int = sys.maxsize) -> bytes:
    found = self._ask(name, lambda: obstore.get(self._store, name))
    if (size := found.meta["size"]) > most:
      raise InputError(f"{self.path / name}: {size} bytes are too many.")
    return self._ask(name, lambda: found.bytes().to_bytes())

  def put(self, name: str, data: bytes, *, create: bool = False) -> bool:
    return (
      self._put(name, data, "create" if create else "overwrite") is not None
    )

  def _put(self, name: str, data: bytes, mode: Any) -> dict[str, str] | None:
    """Writes an object; returns its version, or None if `mode` forbids it."""
    try:
      made = self._ask(
        name,
        lambda: obstore.put(
          self._store, name, data, mode=mode, use_multipart=False
        ),
        writing=True,
      )
    except FileExistsError:
      # Perhaps by this very call, whose answer was lost.
      return self._version(name) if self.read(name) == data else None
    return _version(made)

  @contextlib.contextmanager
  def scratch(self, name: str) -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700
      path = pathlib.Path(folder, "file")
      yield path
      large = path.stat().st_size > _ONE_PUT_BYTES
      self._ask(
        name,
        lambda: obstore.put(self._store, name, path, use_multipart=large),
        writing=True,
      )

  def move(self, name: str, to: str) -> None:
    try:
      self._ask(to, lambda: obstore.copy(self._store, name, to))
    except FileNotFoundError:
      self._ask(to, lambda: obstore.head(self._store, to))
    else:
      self.remove([name])

  def remove(self, names: Iterable[str]) -> None:
    for name in names:
      if name.endswith("/"):
        folder = name.rstrip("/")
        inside = self.sizes(folder, deep=True)
        self.remove([f"{name}{inner}" for inner in inside])
      else:
        with contextlib.suppress(FileNotFoundError):
          self._ask(name, functools.partial(obstore.delete, self._store, name))

  def local_files(
    self, files: Sequence[tuple[str, int]]
  ) -> Generator[pathlib.Path, None, None]:
    return fetched_ahead(self._range, files)

  def _range(self, name: str, start: int, end: int) -> Buffer:
    return self._ask(
      name, lambda: obstore.get_range(self._store, name, start=start, end=end)
    )

  @contextlib.contextmanager
  def lock(self, name: str) -> Iterator[None]:
    """Holds an object that its holder writes anew as long as it lives."""
    mode: Any = "create"
    if (before := self._version(name)) is not None:
      # Left by a job that was killed, unless it changes.
      time.sleep(3 * _BEAT_SECONDS)
      mode = before
    ours = self._put(name, secrets.token_bytes(16), mode)
    if ours is None:
      raise InputError(
        f"{self.path}: another job is writing there; let it end, or choose"
        " another --out."
      )
    stop = threading.Event()

    def go_on() -> None:
      nonlocal ours
      while ours and not stop.wait(_BEAT_SECONDS):
        # A beat that fails loses nothing: shards need no lock.
        with contextlib.suppress(RunError, InputError, FileNotFoundError):
          ours = self._put(name, secrets.token_bytes(16), ours)

    beat = threading.Thread(target=go_on, name="lock", daemon=True)
    beat.start()
    try:
      yield
    finally:
      stop.set()
      beat.join()
      if ours:  # else somebody took it over
        with contextlib.suppress(RunError, InputError):
          self.remove([name])

  def _version(self, name: str) -> dict[str, str] | None:
    try:
      return _version(self._ask(name, lambda: obstore.head(self._store, name)))
    except FileNotFoundError:
      return None

  def _ask(
    self, name: str, call: Callable[[], _T], *, writing: bool = False
  ) -> _T:
    """Calls the store, and again where an answer was cut: obstore gives up."""
    for wait in (0.1, 0.4, 1.6, None):
      with _errors(self.path / name, writing=writing):
        try:
          return call()
        except exceptions.GenericError as e:
          if wait is None or "body" not in str(e).split("\n")[0]:
            raise
      time.sleep(wait)
    raise AssertionError


@contextlib.contextmanager
def _errors(place: pathlib.Path, *, writing: bool = False) -> Iterator[None]:
  """Turns what a store answers into the errors of `Store`."""
  bucket = ObjectPath(*place.parts[:2])
  try:
    yield
  except (exceptions.NotFoundError, FileNotFoundError) as e:
    if writing:
      raise InputError(f"{bucket}: there is no such bucket.") from e
    raise FileNotFoundError(errno.ENOENT, "not there", str(place)) from e
  except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as e:
    raise FileExistsError(errno.EEXIST, "there already", str(place)) from e
  except (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
  ) as e:
    raise InputError(
      f"{place}: the store does not let these credentials"
      f" {'write' if writing else 'read'} there; give others, or ask for the"
      " permission."
    ) from e
  except exceptions.BaseError as e:
    reason = str(e).split("\n")[0]  # The rest is for debugging, and long.
    if "404 Not Found" in reason:  # so says a listing
      raise InputError(f"{bucket}: there is no such bucket.") from e
    if "169.254.169.254" in reason or "metadata.google" in reason:
      # Where virtual machines have theirs; it is asked last.
      raise InputError(
        f"{bucket}: no credentials were found; log in as for the store's own"
        " tools, or set their environment variables."
      ) from e
    raise RunError(
      f"{place}: {reason[:300]}; run the same command again (what is finished"
      " is kept)."
    ) from e


def _version(of: Mapping[str, Any]) -> dict[str, str]:
  both = {name: of.get(name) for name in ("e_tag", "version")}
  return {name: value for name, value in both.items() if value is not None}
