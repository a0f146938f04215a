"""Pretrained weights on this machine, wherever they are published."""

import hashlib
import os
import pathlib
import re
import secrets
import sys
import urllib.parse
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files, storage

_KNOWN = (
  "give a path, https://, gs://BUCKET/OBJECT, s3://BUCKET/OBJECT or"
  " hf://OWNER/REPO[@REVISION]/FILE"
)


def local_weights(location: str, sha256: str | None = None) -> pathlib.Path:
  """The file of weights, downloaded once if it is elsewhere.

  Args:
    location: a path, https://, gs://, s3:// or hf://OWNER/REPO[@REVISION]/FILE.
      Plain http:// is for this machine only.
    sha256: what the file's must be, in hexadecimal.

  Raises:
    InputError: there is no such file, its server denies it, or it has another
      SHA-256.
    RunError: the network or the disk fails.
  """
  wanted = sha256 and sha256.lower()
  if wanted is not None and not re.fullmatch("[0-9a-f]{64}", wanted):
    raise InputError(f"--weights-sha256 {wanted[:80]!a} is no SHA-256.")
  shown = escaped(re.sub("//[^/]*@", "//", location).partition("?")[0])[:500]
  try:
    if "://" not in location:
      path = pathlib.Path(location).expanduser()
    elif location.startswith("hf://"):
      path = _from_hub(location)
    else:
      path = _downloaded(location, shown, wanted)
  except (InputError, RunError):
    raise
  except Exception as error:  # the clients', whose first lines say it
    said = escaped(" ".join(str(error).split("\n\n")[0].split()))[:300]
    denied = re.search("40[134] |privilege|metadata|hf://", said)
    raise (InputError if denied else RunError)(
      f"{shown}: {said}; check that you may read it (`hf auth login`; public"
      " objects of gs:// are at https://storage.googleapis.com/BUCKET/OBJECT),"
      " run the same command again, or give --weights, the path of the file."
    ) from None
  files.open_regular(path).close()  # or says why not
  if wanted and (found := file_sha256(path)) != wanted:
    raise InputError(f"{shown} has SHA-256 {found}, not {wanted}: correct one.")
  return path


def cache_dir() -> pathlib.Path:
  """$ONESHOT_DP_WEIGHTS_DIR, or a folder in the user's cache."""
  named = os.environ.get("ONESHOT_DP_WEIGHTS_DIR")
  return pathlib.Path(named or "~/.cache/oneshot-dp/weights").expanduser()


def file_sha256(path: pathlib.Path) -> str:
  """In hexadecimal."""
  with files.open_regular(path) as file:
    digest: Any = hashlib.file_digest(file, "sha256")  # pyrefly: ignore
  return digest.hexdigest()


def _downloaded(location: str, shown: str, wanted: str | None) -> pathlib.Path:
  """A file in the cache whose name says its SHA-256; fetched if it is not."""
  import obstore

  store, key = _store_of(location, shown)
  source = hashlib.sha256(location.encode()).hexdigest()[:16]
  name = re.sub(r"[^A-Za-z0-9._-]", "_", key)[-80:]
  for path in cache_dir().glob(f"{source}-*-{name}"):
    found = path.name.split("-")[1]
    if wanted in (None, found) and file_sha256(path) == found:
      return path
  part = cache_dir() / f"{source}-{secrets.token_hex(4)}.part"
  with files.disk_errors(part):
    part.parent.mkdir(parents=True, exist_ok=True)
  print(f"fetching {shown}", file=sys.stderr)
  try:
    answer = obstore.get(store, key)  # goes on where a connection broke
    with files.disk_errors(part), part.open("wb") as file:
      for chunk in answer.stream(min_chunk_size=1 << 18):
        file.write(chunk)
    path = part.with_name(f"{source}-{file_sha256(part)}-{name}")
    with files.disk_errors(path):
      files.sync(part)
      part.rename(path)
  finally:
    part.unlink(missing_ok=True)
  return path


def _store_of(location: str, shown: str) -> tuple[Any, str]:
  """obstore's store of an address, and the object's name in it."""
  folder, _, key = location.rpartition("/")
  scheme, host = urllib.parse.urlsplit(folder)[:2]
  local = re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", host) is not None
  if scheme in ("gs", "s3") and host and key:
    return storage.store_at(folder).remote, key
  if scheme not in ("https", "http") or not (host and key):
    raise InputError(f"--weights {shown}: {_KNOWN}.")
  if "?" in location or "@" in host or (scheme == "http" and not local):
    raise InputError(
      f"--weights {shown}: what has a query or a password, or is not https://,"
      " is not fetched; download the file and give its path."
    )
  from obstore.store import from_url

  options: Any = {"allow_http": local, "timeout": "60s"}
  retries: Any = {"max_retries": 4}
  store = from_url(folder, client_options=options, retry_config=retries)
  return store, urllib.parse.unquote(key)


def _from_hub(location: str) -> pathlib.Path:
  """From the Hub, by its own client and in its own cache."""
  import huggingface_hub

  uri = huggingface_hub.parse_hf_uri(location)
  if uri.is_bucket or not uri.path_in_repo:
    raise InputError(f"--weights {escaped(location)}: {_KNOWN}.")
  found = huggingface_hub.hf_hub_download(
    uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision
  )
  return pathlib.Path(found)
