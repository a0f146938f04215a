"""Finds and downloads data sets of the Hugging Face Hub, by its own client.

What is downloaded stays in the cache of the client, by its commit.
"""

import contextlib
import fnmatch
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oneshot_dp.configs.errors import InputError, RunError, escaped

PROTOCOL = "hf://"
_PARQUET = ".parquet"
_FORM = "hf://datasets/OWNER/NAME[@REVISION][/FOLDER]"


class HubDataset(NamedTuple):
  """The Parquet files of a data set on the Hub, at one commit.

  Attributes:
    repository: OWNER/NAME.
    commit: its SHA-1, in hexadecimal; the files of a commit never change.
    pinned: the address that was asked for, at this commit.
    paths: of the Parquet files in the repository, sorted.
  """

  repository: str
  commit: str
  pinned: str
  paths: list[str]

  @property
  def root(self) -> str:
    """The address that `paths` are relative to."""
    return f"hf://datasets/{self.repository}@{self.commit}"


def find_dataset(location: str) -> HubDataset:
  """Finds the Parquet files of a data set; none is downloaded.

  Args:
    location: hf://datasets/OWNER/NAME[@REVISION][/PATH]. PATH is a folder, a
      file, or a pattern of the files of one folder (data/train-*.parquet).

  Returns:
    The files, at the commit that the revision stands for now.

  Raises:
    InputError: there is no such data set, it may not be read, or it has no
      Parquet files there.
    RunError: the Hub is out of reach.
  """
  # The client takes half a second to import.
  from huggingface_hub import HfApi, parse_hf_uri
  from huggingface_hub.errors import HfUriError

  try:
    uri = parse_hf_uri(location)
  except HfUriError:
    raise InputError(f"{location!r} is not a data set: give {_FORM}.") from None
  if uri.type != "dataset":
    raise InputError(f"{location!r} is not a data set: give {_FORM}.")
  with _dataset_errors(location):
    api = HfApi()
    # A branch may move between two requests: all after the first name a commit.
    commit = str(api.dataset_info(uri.id, revision=uri.revision).sha)
    names = api.list_repo_files(uri.id, repo_type="dataset", revision=commit)
  # Sorted, so that rows have one order whatever the order of the answer: ids of
  # rows are their places in it.
  paths: list[str] = []
  for name in sorted(names):
    if name.lower().endswith(_PARQUET) and _is_asked(name, uri.path_in_repo):
      paths.append(name)
  if not paths:
    raise InputError(
      f"{location!r} has no Parquet files: try the Hub's own copy of it in"
      f" Parquet, 'hf://datasets/{uri.id}@refs/convert/parquet', or download it"
      " and give its files."
    )
  pinned = f"hf://datasets/{uri.id}@{commit}"
  if uri.path_in_repo:
    pinned += f"/{uri.path_in_repo}"
  return HubDataset(uri.id, commit, pinned, paths)


def _is_asked(path: str, asked: str) -> bool:
  """Whether a file is, is in, or matches what is asked for; "" is all."""
  if asked in ("", path) or path.startswith(f"{asked}/"):
    return True
  # As a shell has it, a pattern does not reach into folders.
  folder, name = os.path.split(path)
  asked_folder, pattern = os.path.split(asked)
  return folder == asked_folder and fnmatch.fnmatchcase(name, pattern)


def download_files(dataset: HubDataset, paths: Sequence[str]) -> str:
  """Downloads some files of a data set, unless they are in the cache.

  Args:
    dataset: as it was found.
    paths: some of its `paths`.

  Returns:
    The folder on this machine that the paths are relative to.

  Raises:
    InputError: they may not be read.
    RunError: the Hub is out of reach, or the disk fails.
  """
  from huggingface_hub import snapshot_download

  with _dataset_errors(dataset.pinned):
    return snapshot_download(
      dataset.repository,
      repo_type="dataset",
      revision=dataset.commit,
      allow_patterns=[glob.escape(path) for path in paths],
    )


@contextlib.contextmanager
def _dataset_errors(location: str) -> Iterator[None]:
  """Errors of the client as ours, which say what to do."""
  from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
  )

  try:
    with quiet_client():
      yield
  except GatedRepoError:  # a kind of the next
    raise InputError(
      f"{location!r} is gated: ask for access on its page of the Hub, then run"
      " `hf auth login`."
    ) from None
  except RepositoryNotFoundError:
    raise InputError(
      f"{location!r} is not on the Hub, or is private: correct the name, or run"
      " `hf auth login`."
    ) from None
  except RevisionNotFoundError:
    raise InputError(
      f"{location!r}: the data set has no such revision; correct it."
    ) from None
  except Exception as error:  # of the network and of the disk
    raise RunError(
      f"{location!r} cannot be downloaded: {first_paragraph(error)}; run the"
      " same command again, or give Parquet files that are on this machine."
    ) from None


def first_paragraph(error: Exception) -> str:
  """Returns the first paragraph of a client's error, on one line."""
  paragraph = str(error).split("\n\n")[0]
  return escaped(" ".join(paragraph.split()))[:300].rstrip(".")


@contextlib.contextmanager
def quiet_client() -> Iterator[None]:
  """Keeps the Hub's client from logging each of its retries.

  Without a network that would be two lines for each of eleven tries; the error
  at the end says it once.
  """
  logger = logging.getLogger("huggingface_hub")
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)
