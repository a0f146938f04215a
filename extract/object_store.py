"""Clients of gs:// and s3:// buckets, their listings and their objects."""

import importlib.util
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from oneshot_dp.configs.errors import InputError, escaped, one_line

RETRIES: Any = {"max_retries": 8}  # waiting 0.1 s, 0.2 s …
_NO_RETRIES: Any = {"max_retries": 0}
_IDLE_SECONDS = 60
"""A read is tried again if no byte arrives for so long."""
_READ_SECONDS = 3600
"""A read is also tried again if it takes so long in all."""
_WRITE_SECONDS = 60
_SLOWEST_BYTES_PER_SECOND = 20_000
"""A write may take `_WRITE_SECONDS`, and as long as its bytes do at this rate.
It is one PUT whatever its size: parts cannot be put on the condition that the
name is free, which is what keeps two workers from writing over each other. A
shard is far below the 5 GiB that a PUT may have."""
_LISTED_AT_ONCE = 1000
_ODD_NAME = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
"""Names that obstore does not take: with an empty part, . or .. or a control
character."""


class Remote:
  """obstore's clients for one folder of a bucket.

  Attributes:
    scheme: "gs" or "s3".
    was_reached: whether the store has ever answered. Until then a call that
      cannot connect is not tried again: there is no network, or another name
      is meant, and no wait helps.
  """

  def __init__(self, scheme: str, bucket: str, folder: str):
    if "@" in bucket or ":" in bucket:
      # Not repeated here: it may be a password.
      raise InputError(
        f"a {scheme}:// URL has the name of a bucket alone before the first"
        " slash; credentials come from the environment."
      )
    self.scheme = scheme
    self.was_reached = False
    self._bucket = bucket
    self._folder = folder
    self._credentials = _boto3_credentials() if scheme == "s3" else None
    self._writers: dict[int, Any] = {}
    read_timeouts = {
      "timeout": f"{_READ_SECONDS}s",
      "read_timeout": f"{_IDLE_SECONDS}s",
    }
    try:
      self.first = self._client(read_timeouts, _NO_RETRIES)
      self.reader = self._client(read_timeouts, RETRIES)
    except ValueError as e:  # ".." or a control character is in the name
      raise InputError(escaped(f"{scheme}://{bucket}/{folder}: {e}.")) from e

  def writer(self, num_bytes: int) -> Any:
    """A client whose time-out is long enough for a write of this size."""
    # obstore sets time-outs for a client and not for a call. Powers of two of
    # the shortest keep the number of clients, each with connections of its own,
    # small.
    seconds = _WRITE_SECONDS
    while seconds < _WRITE_SECONDS + num_bytes / _SLOWEST_BYTES_PER_SECOND:
      seconds *= 2
    if seconds not in self._writers:
      timeouts = {"timeout": f"{seconds}s"}
      self._writers[seconds] = self._client(timeouts, RETRIES)
    return self._writers[seconds]

  def names_after(self, after: str, error: Exception) -> list[str]:
    """Lists the names that sort after a given one, by Arrow's client.

    Arrow's client holds the whole listing in memory, and knows no entity tags:
    it is asked only for folders with a name that obstore does not take.

    Args:
      after: a name; those that sort behind it by code point are wanted, "" for
        all.
      error: what obstore raised, to be told if Arrow's client fails as well.

    Returns:
      Sorted names, relative to the folder; those of folders are left out.

    Raises:
      InputError: Arrow's client cannot list it either, as none at gs://; names
        the cause.
    """
    from pyarrow import fs

    place = "/".join(filter(None, (self._bucket, self._folder)))
    try:
      if self.scheme != "s3":
        raise OSError("only s3:// can pass over it")
      listed = _arrow_client().get_file_info(
        fs.FileSelector(place, recursive=True)
      )
    except OSError as refused:
      reason = escaped(str(error).partition("\n\nDebug")[0])
      raise InputError(
        f"{self.scheme}://{place}: {reason}; rename or remove it"
        f" ({one_line(refused)})."
      ) from error
    names = []
    for info in listed:
      name = info.path.removeprefix(f"{place}/")
      if info.type == fs.FileType.File and name > after:
        names.append(name)
    return sorted(names)

  def folder_names(self, client: Any) -> list[str]:
    """Names of the folders directly in the folder.

    Also of those that have nothing but keys that are passed over.
    """
    from obstore.exceptions import InvalidPathError

    try:
      return list(client.list_with_delimiter()["common_prefixes"])
    except InvalidPathError as error:
      # A folder's own name is odd, or empty as in `photos//1.jpg`.
      names = set()
      for key in self.names_after("", error):
        folder, slash, _ = key.partition("/")
        if folder and slash:
          names.add(folder)
      return list(names)

  def _client(self, timeouts: dict[str, str], retries: Any) -> Any:
    from obstore.store import GCSStore, S3Store

    options: Any = {
      "prefix": self._folder or None,
      "retry_config": retries,
      "client_options": {"allow_http": True, **timeouts},
    }
    if self.scheme == "gs":
      return GCSStore(self._bucket, **options)
    if self._credentials is not None:
      options["credential_provider"] = self._credentials
    return S3Store(self._bucket, **options)


def _arrow_client() -> Any:
  """Arrow's client of S3, at the endpoint that obstore takes."""
  from pyarrow import fs

  endpoint = None
  for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
    endpoint = endpoint or os.environ.get(variable)
  if endpoint is None:
    return fs.S3FileSystem()
  scheme, _, host = endpoint.partition("://")
  return fs.S3FileSystem(endpoint_override=host, scheme=scheme)


def _boto3_credentials() -> Any:
  """Credentials of AWS's files and single sign-on, where boto3 is installed."""
  if not importlib.util.find_spec("boto3"):
    return None
  from obstore.auth.boto3 import Boto3CredentialProvider

  return Boto3CredentialProvider()


def version_of(metadata: Any) -> str:
  """An entity tag without its quotes, which some stores leave out."""
  version = metadata.get("e_tag") or metadata["last_modified"]
  return str(version).removeprefix("W/").strip('"')


class Listing:
  """The objects of a folder, a thousand at a time.

  A call that failed may be tried again: it goes on after the last name that
  came. Names that obstore does not take (a//b, a/./b, or with a newline) are
  passed over, and named on standard error.
  """

  def __init__(self, remote: Remote):
    self._remote = remote
    self._is_at_end = False
    self._stream: Iterator[Any] | None = None
    self._last: str | None = None
    self._in_order = True

  def next_entries(self, client: Any) -> list[Any]:
    """What obstore says of the next objects; an empty list at the end."""
    from obstore.exceptions import InvalidPathError

    if self._is_at_end:
      return []
    if self._stream is None:
      if not self._in_order:
        raise InputError(
          "a listing whose names come in no order was cut short, and cannot go"
          " on; run the same command again."
        )
      stream = client.list(offset=self._last, chunk_size=_LISTED_AT_ONCE)
      self._stream = iter(stream)
    try:
      entries = list(next(self._stream, ()))
    except InvalidPathError as error:
      self._stream = None
      return self._pass_over(client, error)
    except Exception:
      self._stream = None
      raise
    for entry in entries:
      if self._last is not None and entry["path"] <= self._last:
        self._in_order = False
      self._last = entry["path"]
    return entries

  def _pass_over(self, client: Any, error: Exception) -> list[Any]:
    """What lies before an odd name, and the first object after it.

    obstore gives nothing of the thousand names that the odd one is among, and
    cannot begin behind it.
    """
    entries = []
    odd_names = []
    last = self._last
    is_at_end = True
    for name in self._remote.names_after(self._last or "", error):
      if _ODD_NAME.search(name):
        odd_names.append(name)
        continue
      entries.append(client.head(name))
      last = name
      if odd_names:
        is_at_end = False
        break
    # A request above may fail, and then all of this is tried again. So nothing
    # is remembered before everything that is returned is there.
    self._last = last
    self._is_at_end = is_at_end
    for name in odd_names:
      print(
        f"WARNING: passed over, for its name: {escaped(name, but='')}",
        file=sys.stderr,
      )
    return entries


class RangeReader(io.RawIOBase):
  """An object as a file; each read is one request.

  Attributes:
    name: the object's.
  """

  mode = "rb"

  def __init__(
    self, name: str, size: int, read_part: Callable[[int, int], bytes]
  ):
    self.name = name
    self._size = size
    self._read_part = read_part
    self._position = 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    if whence == os.SEEK_CUR:
      offset += self._position
    elif whence == os.SEEK_END:
      offset += self._size
    self._position = max(0, offset)
    return self._position

  def readinto(self, buffer: Any) -> int:
    # Nothing is asked for past the end, which a store answers with an error.
    size = max(0, min(len(buffer), self._size - self._position))
    if size:
      buffer[:size] = self._read_part(self._position, size)
    self._position += size
    return size
