"""Pretrained weights on this machine, wherever they are published."""

import contextlib
import os
import pathlib
import re
import urllib.parse

import huggingface_hub
import requests
from huggingface_hub import constants as hub_constants
from huggingface_hub.errors import HfUriError

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.durable_files import file_sha256
from oneshot_dp.extract.weights.download import (
  Remote,
  is_trustworthy,
  without_secrets,
)
from oneshot_dp.extract.weights.weights_cache import downloaded

# Google's own clients read it.
EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"

_GOOGLE_STORAGE = "https://storage.googleapis.com"
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_KNOWN = (
  "a path, https://, gs://BUCKET/OBJECT or hf://OWNER/REPO[@REVISION]/FILE"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def local_weights(location: str, sha256: str | None = None) -> pathlib.Path:
  """The file of weights, downloaded once if it is elsewhere.

  A download is interrupted and resumed without loss, and several processes may
  ask for the same one. It is used again without asking its server: with
  `sha256` after hashing it in full, without while size and time of change are
  those of the download (else it is hashed too, and fetched again if it is
  damaged).

  `location` is a path, https://, gs://BUCKET/OBJECT or hf://OWNER/REPO[@REVISION]
  /FILE. Plain http:// is for this machine only, unless `sha256` (hexadecimal)
  says what must arrive.

  Raises:
    InputError: there is no such file, its server denies it, or it has another
      SHA-256; a download that has is removed.
    RunError: the network or the disk fails; a later call resumes.
  """
  if sha256 is not None and not _SHA256.fullmatch(sha256):
    raise InputError(
      f"sha256={sha256!r} must be the 64 hexadecimal digits of a SHA-256."
    )
  wanted = sha256 and sha256.lower()
  if not _SCHEME.match(location):
    return _checked_path(location, wanted)
  scheme, _, rest = location.partition("://")
  match scheme.lower():
    case "hf":
      return _from_hub(location, wanted)
    case "gs":
      remote = _on_google_storage(location, rest)
    case "https" | "http":
      remote = _on_the_web(location)
    case _:
      raise InputError(
        f"{scheme}:// is not a place for weights: give {_KNOWN}."
      )
  return downloaded(remote, wanted)


def _checked_path(location: str, wanted: str | None) -> pathlib.Path:
  path = pathlib.Path(location)
  if not path.is_file():
    what = "is not a file" if path.exists() else "does not exist"
    raise InputError(f"The weights' path {location} {what}: give {_KNOWN}.")
  if wanted:
    try:
      found = file_sha256(path)
    except OSError as error:
      raise InputError(f"{path}: cannot be read: {error.strerror}.") from error
    if found != wanted:
      raise InputError(
        f"{path} has SHA-256 {found}, not {wanted}: correct the one or the "
        "other."
      )
  return path


def _on_the_web(location: str) -> Remote:
  try:
    name = without_secrets(location)
    is_trustworthy(location)
  except ValueError:
    # Not shown: it cannot be said which part of it is a password.
    raise InputError("The address of the weights is malformed.") from None
  return Remote(
    url=location, name=name, remedy="check the address and that you may read it"
  )


def _on_google_storage(location: str, rest: str) -> Remote:
  bucket, _, key = rest.partition("/")
  if not bucket or not key:
    raise InputError(f"{location} must be gs://BUCKET/OBJECT.")
  emulator = os.environ.get(EMULATOR_VARIABLE)
  if emulator and not _SCHEME.match(emulator):
    emulator = f"http://{emulator}"
  endpoint = (emulator or _GOOGLE_STORAGE).rstrip("/")
  return Remote(
    url=f"{endpoint}/{bucket}/{urllib.parse.quote(key)}",
    name=location,
    remedy="check the name; for a private bucket install oneshot-dp[gcp] and "
    "run `gcloud auth application-default login`",
    # Google's credentials are for Google only.
    authorize=None if emulator else _with_google_credentials,
  )


def _with_google_credentials(
  request: requests.PreparedRequest,
) -> requests.PreparedRequest:
  """Adds a token where there is one; public objects are read without."""
  try:
    import google.auth
    import google.auth.exceptions
    import google.auth.transport.requests as transport
  except ImportError:
    return request
  with contextlib.suppress(google.auth.exceptions.GoogleAuthError):
    credentials, _ = google.auth.default(scopes=[_GOOGLE_SCOPE])
    credentials.refresh(transport.Request())
    request.headers["Authorization"] = f"Bearer {credentials.token}"
  return request


def _from_hub(location: str, wanted: str | None) -> pathlib.Path:
  """From the Hub's own cache, else downloaded with the Hub's credentials.

  Not by hf_hub_download: it forgets what has arrived when it is interrupted.
  """
  try:
    uri = huggingface_hub.parse_hf_uri(location)
  except HfUriError:
    uri = None
  if uri is None or uri.is_bucket or not uri.path_in_repo:
    raise InputError(f"{location} must be hf://OWNER/REPO[@REVISION]/FILE.")
  file = {
    "repo_id": uri.id,
    "filename": uri.path_in_repo,
    "repo_type": uri.type,
    "revision": uri.revision,
  }
  held = huggingface_hub.try_to_load_from_cache(**file)
  if isinstance(held, str) and wanted in (
    None,
    file_sha256(pathlib.Path(held)),
  ):
    return pathlib.Path(held)
  url = huggingface_hub.hf_hub_url(**file)
  remote = Remote(
    url=url,
    name=location,
    remedy="check the name and the revision; for a private or gated repository "
    "run `hf auth login` or set HF_TOKEN",
    # Never a token in the clear.
    authorize=_with_hub_credentials if is_trustworthy(url) else None,
  )
  return downloaded(remote, wanted)


def _with_hub_credentials(
  request: requests.PreparedRequest,
) -> requests.PreparedRequest:
  """Adds the user's token, unless it was said not to.

  Not by build_hf_headers: to name the program that runs it, it may itself ask
  the Hub.
  """
  allowed = not hub_constants.HF_HUB_DISABLE_IMPLICIT_TOKEN
  if allowed and (token := huggingface_hub.get_token()):
    request.headers["Authorization"] = f"Bearer {token}"
  return request
