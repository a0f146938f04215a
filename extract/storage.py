"""Files under one folder: on a disk, at gs://bucket/folder or s3://bucket/folder.

obstore speaks to the stores, and tries again what was answered with 429 or 5xx.
Answers that were cut and connections that were reset are tried again here. The
disk is the operating system's: obstore would neither wait until data is on it,
nor keep files to their owner, nor refuse a FIFO. No name is ever written twice,
but by `overwrite`, for tables and pages that people ask for again.
"""

import contextlib
import dataclasses
import functools
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files
from oneshot_dp.extract.files import FileBlock
from oneshot_dp.extract.object_store import (
  Listing,
  RangeReader,
  Remote,
  version_of,
)
from oneshot_dp.extract.store_errors import (
  UnreachableError,
  no_bucket_error,
  store_error,
)

_T = TypeVar("_T")
# A pathlib.Path has lost the second slash.
URL = re.compile(r"(gs|s3):/+([^/]+)/*(.*)")
"""Scheme, bucket and folder of a URL."""
_OTHER_URL = re.compile(
  r"[a-z][a-z0-9+.-]+:/.*|(s3[an]?|gs|gcs|file):.*", re.IGNORECASE
)
_WAITS = (0.1, 0.4, 1.6, 5.0)
"""Seconds between calls that obstore gave up on."""


@dataclasses.dataclass(frozen=True, eq=False)
class Store:
  """A folder on a disk or in an object store.

  Attributes:
    place: its absolute path or its URL.
    remote: clients of the object store; None on a disk.
  """

  place: str
  remote: Remote | None = None

  def path(self, name: str) -> str:
    """The path of a file in it, on a disk."""
    return os.path.join(self.place, name)

  def display_path(self, name: str = "") -> str:
    """The path or URL of a file in it, or of itself, for messages."""
    if not name:
      return escaped(self.place)
    return escaped(f"{self.place.rstrip('/')}/{name}")


def is_url(place: str | os.PathLike) -> bool:
  """Whether a place is at gs:// or s3://."""
  return URL.fullmatch(os.fspath(place)) is not None


def store_at(place: str | os.PathLike) -> Store:
  """Returns the store of a folder or URL, without a call to it.

  Args:
    place: a path, or a gs:// or s3:// URL.

  Returns:
    The store. Of a URL it is the same object in the whole process.

  Raises:
    InputError: it cannot be a path, is a URL of another kind, or the
      credentials cannot be read.
  """
  text = os.fspath(place)
  url = URL.fullmatch(text)
  if url is not None:
    scheme, bucket, folder = url.groups()
    return _remote(scheme, bucket, folder.strip("/"))
  if "\0" in text:
    raise InputError(f"{escaped(text)} is not a valid path.")
  if _OTHER_URL.fullmatch(text) and not os.path.lexists(text):
    raise InputError(
      f"{escaped(text)} is an address that is not read here: download it, and"
      " name the file or folder; URLs begin with gs:// or s3://."
    )
  return Store(os.path.abspath(os.path.expanduser(text)))


@functools.cache
def _remote(scheme: str, bucket: str, folder: str) -> Store:
  """Returns the one store of a folder, which holds connections and threads."""
  place = f"{scheme}://{bucket}/{folder}".rstrip("/")
  with _errors(Store(place), "", "read"):
    return Store(place, Remote(scheme, bucket, folder))


def list_files(store: Store) -> dict[str, tuple[int, str]]:
  """Lists all files of a store, at any depth; none if it does not exist.

  Returns:
    For each name, sorted: bytes, and a version that tells the file from a later
    one of the same name. On a disk, what cannot be read has -1 bytes (see
    `files.walk`).
  """
  listed: dict[str, tuple[int, str]] = {}
  for block in iterate_blocks(store):
    for name, size, version in zip(*block, strict=True):
      listed[name] = (size, version)
  return dict(sorted(listed.items()))


def iterate_blocks(store: Store) -> Iterator[FileBlock]:
  """Yields what `list_files` returns, unsorted in S3's directory buckets.

  In blocks, because of millions of files each step for one file counts.
  """
  if store.remote is None:
    with _errors(store, "", "list"):
      yield from files.walk(store.place)
    return
  # A request gives a thousand names, and each may fail by itself: `_call` tries
  # one again, and not the listing of millions from its beginning.
  listing = Listing(store.remote)
  while True:
    entries = _call(store, "", "list", listing.next_entries)
    if not entries:
      return
    block = FileBlock([], [], [])
    for entry in entries:
      block.names.append(entry["path"])
      block.sizes.append(entry["size"])
      block.versions.append(version_of(entry))
    yield block


def folder_names(store: Store) -> list[str]:
  """Names of the folders directly in a bucket's folder, in any order."""
  assert store.remote is not None
  return _call(store, "", "list", store.remote.folder_names)


def state(store: Store, name: str) -> tuple[int, str]:
  """Returns bytes and version of a file; FileNotFoundError: there is none."""
  if store.remote is not None:
    metadata = _call(store, name, "read", lambda client: client.head(name))
    return metadata["size"], version_of(metadata)
  with _open_local(store, name) as file:
    status = os.fstat(file.fileno())
  return status.st_size, str(status.st_mtime_ns)


def _open_local(
  store: Store, name: str, most_bytes: int | None = None
) -> BinaryIO:
  try:
    return files.open_regular(store.path(name), most_bytes)
  except InputError as e:
    if isinstance(e.__cause__, FileNotFoundError):
      raise FileNotFoundError(store.display_path(name)) from e
    raise


def read(
  store: Store, name: str, most_bytes: int = files.MOST_BYTES
) -> bytes | None:
  """Reads a whole file.

  Args:
    store: the folder.
    name: the file.
    most_bytes: more are refused before they are in memory.

  Returns:
    Its bytes, or None if it does not exist.

  Raises:
    TooLargeError: it has more bytes.
    InputError: it may not be read.
    RunError: the store does not answer.
  """

  def get(client: Any) -> bytes:
    answer = client.get(name)
    # The size comes with the headers of the answer, before its body.
    size = answer.meta["size"]
    if size > most_bytes:
      raise files.TooLargeError(
        f"{store.display_path(name)}: {size:,} bytes are more than"
        f" {most_bytes:,}."
      )
    return answer.bytes().to_bytes()

  try:
    if store.remote is not None:
      return _call(store, name, "read", get)
    with (
      _open_local(store, name, most_bytes) as file,
      _errors(store, name, "read"),
    ):
      return file.read(os.fstat(file.fileno()).st_size)
  except FileNotFoundError:
    return None


def read_range(
  store: Store, name: str, start: int, size: int
) -> tuple[bytes, str]:
  """Reads `size` bytes of a file from byte `start` on, and its version.

  Args:
    store: the folder.
    name: the file.
    start: the first byte, counted from 0.
    size: how many bytes; fewer come where the file ends.

  Raises:
    FileNotFoundError: it does not exist.
    InputError: it may not be read, or the disk fails.
    RunError: the store does not answer.
  """

  def get(client: Any) -> tuple[bytes, str]:
    answer = client.get(name, options={"range": (start, start + size)})
    return answer.bytes().to_bytes(), version_of(answer.meta)

  if store.remote is not None:
    return _call(store, name, "read", get)
  with _open_local(store, name) as file, _errors(store, name, "read"):
    file.seek(start)
    return file.read(size), str(os.fstat(file.fileno()).st_mtime_ns)


def write_if_absent(store: Store, name: str, data: bytes) -> bytes:
  """Writes a file whole, unless one of its name exists.

  *Formal guarantees*: of any number of writers one succeeds, and none writes
  over another's file; what this call returned, which is there now, survives a
  crash.

  Args:
    store: the folder; on a disk it is made if it does not exist.
    name: the file.
    data: its content.

  Returns:
    The content that is there now: `data`, or what another writer wrote.

  Raises:
    InputError: credentials or permissions do not suffice.
    RunError: the disk or the store failed.
  """
  for wait in (0.0, *_WAITS):
    time.sleep(wait)
    if store.remote is None:
      if files.write_once(store.path(name), data):
        return data
    elif _put(store, store.remote, name, data):
      return data
    # Perhaps it was this very call that wrote it, and its answer was lost.
    existing = read(store, name, max(files.MOST_BYTES, len(data)))
    if existing is not None:
      return existing
    # S3 refuses one of two writes at the same moment before the other's file is
    # there to be read, and asks to try again.
  raise RunError(
    f"{store.display_path(name)} was removed meanwhile; run again."
  )


def overwrite(store: Store, name: str, data: bytes) -> None:
  """Writes a file whole, replacing an older one.

  Args:
    store: the folder; on a disk it is made if it does not exist.
    name: the file.
    data: its content.

  Raises:
    InputError: permissions do not suffice.
    RunError: the disk or the store fails.
  """
  if store.remote is None:
    files.replace(store.path(name), data)
  else:
    _put(store, store.remote, name, data, "overwrite")


def _put(
  store: Store, remote: Remote, name: str, data: bytes, mode: Any = "create"
) -> bool:
  """Puts an object; returns whether it did, as its name may be taken."""

  def put(_: Any) -> None:
    writer = remote.writer(len(data))
    writer.put(name, data, mode=mode, use_multipart=False)

  try:
    _call(store, name, "write", put)
  except FileExistsError:
    return False
  return True


def remove(store: Store, names: Iterable[str]) -> None:
  """Removes files; names of files that do not exist are ignored."""
  for name in names:

    def remove_one(client: Any, name: str = name) -> None:
      if client is None:
        os.unlink(store.path(name))
      else:
        client.delete(name)

    # Another worker may have removed it first, or a try whose answer was lost.
    with contextlib.suppress(FileNotFoundError):
      _call(store, name, "remove", remove_one)


@contextlib.contextmanager
def local_file(store: Store, name: str, most_bytes: int) -> Iterator[BinaryIO]:
  """Opens a file as one of this machine, for libraries that read files only.

  Args:
    store: the folder.
    name: the file.
    most_bytes: a larger file is refused before any of it is in memory.

  Yields:
    The open file; from an object store, a copy that has no name. The path
    `/dev/fd/N` of its handle N leads to this very file, wherever its name leads
    to by now.

  Raises:
    FileNotFoundError: it does not exist.
    TooLargeError: it has more bytes.
    InputError: it may not be read.
    RunError: the store does not answer.
  """
  if store.remote is None:
    with _open_local(store, name, most_bytes) as file:
      yield file
    return
  data = read(store, name, most_bytes)
  if data is None:
    raise FileNotFoundError(store.display_path(name))
  with files.as_file(data) as file:
    del data
    yield file


def seekable(store: Store, name: str, size: int) -> BinaryIO:
  """Opens a file for a library that reads only the parts that it needs.

  Args:
    store: the folder.
    name: the file.
    size: its bytes, as they were listed.
  """
  if store.remote is None:
    return files.open_regular(store.path(name))

  def read_part(start: int, num_bytes: int) -> bytes:
    data, _ = read_range(store, name, start, num_bytes)
    return data

  return io.BufferedReader(RangeReader(name, size, read_part), 1 << 20)


def _call(
  store: Store, name: str, action: str, call: Callable[[Any], _T]
) -> _T:
  """Calls a store, and again where the answer was cut or did not come.

  Args:
    store: the folder.
    name: the file, for messages.
    action: a key of `PERMISSIONS`.
    call: takes a client; None on a disk.

  Returns:
    What `call` returned.
  """
  remote = store.remote
  client = None
  if remote is not None:
    if not remote.was_reached:
      with contextlib.suppress(RunError):
        return _first_call(store, remote, name, action, call)
    client = remote.reader
  # InputError goes through at once: no wait mends a missing permission.
  for wait in _WAITS:
    with contextlib.suppress(RunError), _errors(store, name, action):
      return call(client)
    time.sleep(wait)
  with _errors(store, name, action):
    return call(client)


def _first_call(
  store: Store,
  remote: Remote,
  name: str,
  action: str,
  call: Callable[[Any], _T],
) -> _T:
  """A call to a store that has never answered, without another try.

  InputError: it cannot be reached. RunError: it answered that it may go well
  later.
  """
  try:
    with _errors(store, name, action):
      result = call(remote.first)
  except UnreachableError as e:
    raise InputError(str(e)) from e
  except (RunError, FileNotFoundError, FileExistsError):
    remote.was_reached = True
    raise
  remote.was_reached = True
  return result


@contextlib.contextmanager
def _errors(store: Store, name: str, action: str) -> Iterator[None]:
  """Says in one line what is refused; RunError: what may go well later."""
  try:
    yield
  except (FileExistsError, InputError, RunError):
    raise
  except FileNotFoundError as e:
    # obstore says the same of an object and of a whole bucket.
    is_bucket = action in ("write", "list") or "NoSuchBucket" in str(e)
    if store.remote is None or not is_bucket:
      raise
    raise no_bucket_error(store.place) from e
  except OSError as e:
    raise InputError(
      f"{store.display_path(name)}: cannot {action} it: {e.strerror}."
    ) from e
  except Exception as e:
    if not type(e).__module__.startswith("obstore"):
      raise
    raise store_error(store.place, store.display_path(name), action, e) from e
