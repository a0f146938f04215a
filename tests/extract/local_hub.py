"""A Hugging Face Hub on the loopback, with the files that it is given."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import constants

from tests.extract import object_server

COMMIT = "a" * 40
NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there."""


def ask_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
  """Lets the Hub's client ask at this address."""
  template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
  monkeypatch.setattr(constants, "ENDPOINT", url)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr("time.sleep", lambda _: None)  # between its tries


@contextlib.contextmanager
def serve_files(
  monkeypatch: pytest.MonkeyPatch,
  cache: pathlib.Path,
  files: dict[str, bytes],
) -> Iterator[Any]:
  """Serves files by OWNER/REPO/FILE, of any revision; others are not there."""

  def answer(method, path, headers, body):
    owner, repository, _, _, file = path.lstrip("/").split("/", 4)
    data = files.get(f"{owner}/{repository}/{file}")
    headers = [("X-Repo-Commit", COMMIT)]
    if data is None:
      return 404, [*headers, ("X-Error-Code", "EntryNotFound")], b""
    return 200, [*headers, ("ETag", f'"{len(data)}"')], data

  server: Any = object_server.ObjectServer(answer)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
  ask_at(monkeypatch, server.url)
  with object_server.running(server):
    yield server
