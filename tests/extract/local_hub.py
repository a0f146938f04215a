"""A Hugging Face Hub on the loopback, with the files that it is given."""

import contextlib
import json
import pathlib
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from huggingface_hub import constants

from tests.extract import object_server

COMMIT = "0".zfill(40)
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


class Commit(NamedTuple):
  """A commit of a data set, which tests move a branch to."""

  sha1: str
  files: dict[str, bytes]


class Dataset:
  """One data set on a Hub; a test may move its branch or deny its files.

  Attributes:
    branches: the commit of each branch.
    commits: every commit that was served, by its SHA-1.
    denied: the status and the error code of each file, where it is gated.
  """

  def __init__(self, repository: str, commit: Commit):
    self.repository = repository
    self.branches = {"main": commit}
    self.commits = {commit.sha1: commit}
    self.denied: tuple[int, str] | None = None

  def move(self, branch: str, commit: Commit) -> None:
    self.branches[branch] = commit
    self.commits[commit.sha1] = commit

  def answer(self, method, path, headers, body) -> object_server.Answer:
    """What the Hub says to its client: of a commit, its files, and a file."""
    del method, headers, body
    path = urllib.parse.urlsplit(path).path
    for prefix in (f"/api/datasets/{self.repository}", self._files):
      if path == prefix or path.startswith(f"{prefix}/"):
        rest = urllib.parse.unquote(path.removeprefix(prefix).lstrip("/"))
        if prefix == self._files:
          return self.file(*rest.split("/", 1))
        return self._api(rest)
    return 404, [("X-Error-Code", "RepoNotFound")], b""

  @property
  def _files(self) -> str:
    return f"/datasets/{self.repository}/resolve"

  def _commit(self, revision: str) -> Commit | None:
    return self.branches.get(revision) or self.commits.get(revision)

  def _api(self, rest: str) -> object_server.Answer:
    kind, _, revision = rest.partition("/")
    commit = self._commit(revision or "main")
    if commit is None:
      return 404, [("X-Error-Code", "RevisionNotFound")], b""
    said: Any = {"id": self.repository, "sha": commit.sha1}
    if kind == "tree":
      said = []
      for name, data in commit.files.items():
        entry = {"type": "file", "path": name, "oid": name, "size": len(data)}
        said.append(entry)
    return 200, [], json.dumps(said).encode()

  def file(self, revision: str, name: str) -> object_server.Answer:
    """What the Hub says when it is asked for a file."""
    if self.denied is not None:
      status, code = self.denied
      return status, [("X-Error-Code", code)], b""
    commit = self.commits[revision]
    etag = f'"{commit.sha1[:8]}-{name.replace("/", "-")}"'
    headers = [("X-Repo-Commit", commit.sha1), ("ETag", etag)]
    return 200, headers, commit.files[name]


@contextlib.contextmanager
def serve_dataset(
  monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path, dataset: Dataset
) -> Iterator[Any]:
  """Serves a data set; others are not there."""
  server: Any = object_server.ObjectServer(dataset.answer)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
  ask_at(monkeypatch, server.url)
  with object_server.running(server):
    yield server
