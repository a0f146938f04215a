"""Pretrained weights on this machine, wherever they are published."""

import fcntl
import hashlib
import os
import pathlib
import re
import time
import urllib.parse
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files, storage

_LOCAL = ("127.0.0.1", "localhost", "::1")
_WAITS = (0.5, 2.0, 8.0)
"""Seconds after which a download that does not grow is tried again."""


def local_weights(location: str, sha256: str | None = None) -> pathlib.Path:
  """The file of weights, downloaded once if it is elsewhere.

  A download grows under another name, is resumed where it broke, in this run
  or a later one, and is used again while its SHA-256 is what it was. Several
  processes may ask for the same one.

  Args:
    location: a path, https://, gs://, s3:// or hf://OWNER/REPO[@REVISION]/FILE.
      Plain http:// is for this machine only, unless `sha256` says what must
      arrive.
    sha256: what the file's must be, in hexadecimal.

  Raises:
    InputError: there is no such file, its server denies it, or it has another
      SHA-256.
    RunError: the network or the disk fails; a later call resumes.
  """
  if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
    raise InputError(
      f"--weights-sha256 {sha256[:80]!a} must be the 64 hexadecimal digits of a"
      " SHA-256."
    )
  wanted = sha256 and sha256.lower()
  shown = escaped(re.sub("//[^/]*@", "//", location).partition("?")[0])[:500]
  if "://" not in location:
    path = pathlib.Path(location).expanduser()
  elif location.startswith("hf://"):
    path = _from_hub(location, shown)
  else:
    path = _downloaded(location, shown, trusted=wanted is not None)
  found = wanted and _sha256(path)
  if found != wanted:
    raise InputError(
      f"{shown} has SHA-256 {found}, not {wanted}: correct the one or the other."
    )
  return path


def cache_dir() -> pathlib.Path:
  """$ONESHOT_DP_WEIGHTS_DIR, or a folder in the user's cache."""
  named = os.environ.get("ONESHOT_DP_WEIGHTS_DIR")
  return pathlib.Path(named or "~/.cache/oneshot-dp/weights").expanduser()


def _downloaded(location: str, shown: str, trusted: bool) -> pathlib.Path:
  """The file of an address in the cache, fetched if it is not there intact."""
  store, key = _store_of(location, shown, trusted)
  digest = hashlib.sha256(location.encode()).hexdigest()[:16]
  name = re.sub(r"[^A-Za-z0-9._-]", "_", key)[-80:]
  path = cache_dir() / f"{digest}-{name}"
  note = path.with_name(f"{path.name}.sha256")
  with files.disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock").open("ab")
  with lock:  # one process at a time; the lock goes with it
    fcntl.flock(lock, fcntl.LOCK_EX)
    whole = path.is_file() and note.is_file()
    if not whole or _sha256(path) != note.read_text():
      part = _fetched(store, key, shown, path)
      with files.disk_errors(path):
        note.write_text(_sha256(part))
        files.sync(part)
        part.rename(path)
  return path


def _store_of(location: str, shown: str, trusted: bool) -> tuple[Any, str]:
  """obstore's store of an address, and the object's name in it."""
  folder, _, key = location.rpartition("/")
  parts = urllib.parse.urlsplit(folder)
  if parts.scheme not in ("https", "http", "gs", "s3") or not parts.netloc:
    raise InputError(
      f"--weights {shown}: give a path, https://, gs://BUCKET/OBJECT,"
      " s3://BUCKET/OBJECT or hf://OWNER/REPO[@REVISION]/FILE."
    )
  if parts.scheme in ("gs", "s3"):
    return storage.store_at(folder).remote, key
  if "?" in location or "@" in parts.netloc:
    raise InputError(
      f"--weights {shown}: an address with a query or a password is not fetched;"
      " download the file and give its path."
    )
  plain = parts.scheme == "http"
  if plain and not trusted and parts.hostname not in _LOCAL:
    raise InputError(
      f"--weights {shown}: over http:// anybody on the way can change the file;"
      " use https://, or say what its SHA-256 is."
    )
  from obstore.store import from_url

  options: Any = {"allow_http": plain, "timeout": "60s"}
  retries: Any = {"max_retries": 2}
  store = from_url(folder, client_options=options, retry_config=retries)
  return store, urllib.parse.unquote(key)


def _fetched(
  store: Any, key: str, shown: str, path: pathlib.Path
) -> pathlib.Path:
  """The whole file under another name; goes on with what is there of it."""
  import obstore

  for wait in (*_WAITS, None):
    try:
      meta = obstore.head(store, key)
      version = f"{meta['e_tag']} {meta['last_modified']} {meta['size']}"
      digest = hashlib.sha256(version.encode()).hexdigest()[:8]
      part = path.with_name(f"{path.name}.{digest}.part")
      held = part.stat().st_size if part.exists() else 0
      if held < meta["size"]:
        options: Any = {"range": {"offset": held}} if held else {}
        answer = obstore.get(store, key, options=options)
        with files.disk_errors(part), part.open("ab") as file:
          for chunk in answer.stream():
            file.write(chunk)
      if part.stat().st_size == meta["size"]:
        return part
      part.unlink()
      reason = "the server did not send the length that it announced"
    except FileNotFoundError:
      raise InputError(f"{shown}: there is no such file.") from None
    except RunError:
      raise
    except Exception as error:  # obstore's, whose first line says it
      reason = escaped(str(error).partition("\n")[0])[:300]
      if re.search("40[13] |privilege|metadata", reason):
        raise InputError(
          f"{shown}: {reason}; check that you may read it (a public object of"
          " gs:// is at https://storage.googleapis.com/BUCKET/OBJECT)."
        ) from None
    if wait is None:
      raise RunError(f"{shown}: {reason}; run the same command to resume.")
    time.sleep(wait)
  raise AssertionError


def _from_hub(location: str, shown: str) -> pathlib.Path:
  """From the Hub, by its own client and in its own cache."""
  import huggingface_hub
  from huggingface_hub import errors

  try:
    uri = huggingface_hub.parse_hf_uri(location)
    found = huggingface_hub.hf_hub_download(
      uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision
    )
    return pathlib.Path(found)
  except Exception as error:
    reason = escaped(" ".join(str(error).split()))[:300]
    known = (
      errors.HfUriError,
      errors.EntryNotFoundError,
      errors.HfHubHTTPError,
    )
    unreached = isinstance(error, errors.LocalEntryNotFoundError)
    kind = RunError if unreached or not isinstance(error, known) else InputError
    raise kind(
      f"{shown}: {reason} (Give the path of the file as --weights, or run the"
      " same command again; a gated repository wants `hf auth login`.)"
    ) from None


def _sha256(path: pathlib.Path) -> str:
  with files.open_regular(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
