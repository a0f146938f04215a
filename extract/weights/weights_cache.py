"""Downloads, kept once for all runs of a user.

A file is kept under a name made of its URL's digest and its own name, with a
note of its size and SHA-256 beside it.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterator

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  file_sha256,
  publish,
  write_json,
)
from oneshot_dp.extract.storage.typed_json import read_json
from oneshot_dp.extract.weights import download
from oneshot_dp.extract.weights.download import Remote, is_trustworthy

CACHE_VARIABLE = "ONESHOT_DP_WEIGHTS_DIR"
_LONGEST_NAME = 100


def cache_dir() -> pathlib.Path:
  """Where downloads are kept: $ONESHOT_DP_WEIGHTS_DIR or the user's cache."""
  if chosen := os.environ.get(CACHE_VARIABLE):
    return pathlib.Path(chosen).expanduser()
  cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  return pathlib.Path(cache).expanduser() / "oneshot-dp" / "weights"


def downloaded(remote: Remote, sha256: str | None) -> pathlib.Path:
  """The file in the cache, fetched if it is not there whole.

  With `sha256` (lower-case) it is hashed in full; without, only where its size
  or time of change are not those of the download. A file that was damaged since
  is fetched again.
  """
  path = cache_dir() / _cache_name(remote.url)
  in_full = sha256 is not None
  # First without the lock, for a cache that may only be read.
  found = _intact(path, in_full=in_full)
  if found is not None and sha256 in (None, found):
    return path
  if sha256 is None and not is_trustworthy(remote.url):
    raise InputError(
      f"{remote.name}: what comes over http:// can be changed on the way; use "
      "https://, or say what must arrive with its SHA-256."
    )
  with _locked(path):
    found = _intact(path, in_full=in_full)
    # With another hash there may be another file at the address by now.
    if found is None or sha256 not in (None, found):
      _download(remote, path, sha256)
  return path


def remember(location: str, sha256: str) -> None:
  """Notes on this machine where weights were found, by their SHA-256."""
  if "://" not in location:
    location = str(pathlib.Path(location).absolute())
  note = _known(sha256)
  with contextlib.suppress(OSError, RunError):
    if remembered(sha256) != location:
      note.parent.mkdir(parents=True, exist_ok=True)
      write_json(note, {"location": location})


def remembered(sha256: str) -> str | None:
  """Where weights of a SHA-256 were found last, if they are still there."""
  try:
    location = read_json(_known(sha256))["location"]
  except (InputError, KeyError):
    return None
  return location if "://" in location or os.path.isfile(location) else None


def _known(sha256: str) -> pathlib.Path:
  return cache_dir() / "by-sha256" / f"{sha256}.json"


def _download(remote: Remote, path: pathlib.Path, sha256: str | None) -> None:
  """Fetches a file into the cache, in place of another one if it is right."""
  part = path.with_name(path.name + ".part")
  download.fetch(remote, part)
  found, stat = file_sha256(part), part.stat()
  if sha256 not in (None, found):
    with disk_errors(part):
      part.unlink()
      download.note_path(part).unlink(missing_ok=True)
    raise InputError(
      f"{remote.name} has SHA-256 {found}, not {sha256}: the download was "
      "removed; correct the SHA-256 or the address."
    )
  note = {
    "source": remote.name,
    "sha256": found,
    "size": stat.st_size,
    "mtime_ns": stat.st_mtime_ns,
  }
  write_json(download.note_path(path), note)
  publish(part, path)
  with disk_errors(part):
    download.note_path(part).unlink(missing_ok=True)


def _intact(path: pathlib.Path, *, in_full: bool) -> str | None:
  """The SHA-256 of a download that is whole and unchanged, else None."""
  try:
    note, stat = read_json(download.note_path(path)), path.stat()
    found = note["sha256"]
    if in_full or (stat.st_size, stat.st_mtime_ns) != (
      note["size"],
      note["mtime_ns"],
    ):
      found = file_sha256(path)
    return found if found == note["sha256"] else None
  except (OSError, InputError, KeyError):
    return None


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
  """One process at a time; the lock goes with the process that holds it."""
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock").open("ab")
  with lock:
    with disk_errors(path):
      fcntl.flock(lock, fcntl.LOCK_EX)
    yield


def _cache_name(url: str) -> str:
  """A name for a URL; its user and password do not say which file it is."""
  parts = urllib.parse.urlsplit(url)
  host = parts.netloc.rpartition("@")[2]
  plain = parts._replace(netloc=host, fragment="").geturl()
  digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
  base = urllib.parse.unquote(parts.path).rpartition("/")[2]
  readable = re.sub(r"[^A-Za-z0-9._-]", "_", base)[-_LONGEST_NAME:]
  return f"{digest}-{readable or 'weights'}"
