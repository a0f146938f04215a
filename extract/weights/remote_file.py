"""A file on a server: how it is asked for, named and trusted."""

import dataclasses
import urllib.parse
from collections.abc import Callable

import requests

Authorize = Callable[[requests.PreparedRequest], requests.PreparedRequest]

_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remote:
  """Where a file is, and how to ask for it.

  Attributes:
    url: http(s); it may hold secrets, so it is never shown.
    name: what messages call it.
    remedy: what to do where the server denies it.
    authorize: adds credentials to a request; they are dropped where a redirect
      leads to another host.
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
