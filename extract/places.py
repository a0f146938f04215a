"""Single files wherever they lie: on a disk, or at gs:// and s3://.

What a person names on a command line is a place: a path, or a URL that joins
and is shown like one. Commands that read or write a few files ask here, and do
not ask where it is.
"""

import os
import pathlib
import re

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.extract import files, storage
from oneshot_dp.extract.files import MOST_BYTES
from oneshot_dp.extract.storage import Store

_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Schemes by which other programs name the stores."""
_STORE_SCHEMES = ("s3", "gs")
_SCHEME = re.compile(r"([a-z][a-z0-9]*):(/+)(.*)", re.IGNORECASE | re.DOTALL)


class Url(pathlib.PosixPath):
  """A gs:// or s3:// URL, which joins as paths do; nothing looks at a disk.

  >>> Url("s3://bucket/heads/2") / "receipt.json"
  Url('s3://bucket/heads/2/receipt.json')
  >>> str(Url("s3://bucket/heads/2").parent)
  's3://bucket/heads'
  """

  def __str__(self) -> str:
    # A path has one slash where it was given two.
    return super().__str__().replace(":/", "://", 1)

  def __fspath__(self) -> str:
    return str(self)

  def resolve(self, strict: bool = False) -> "Url":
    """The URL itself: it is absolute, and follows no links."""
    return self

  def __repr__(self) -> str:
    return f"Url({str(self)!r})"


def normalize(word: str) -> str:
  """A path or URL as it is meant: s3a://, S3:/ are s3://, file:///x is /x.

  >>> normalize("s3a://bucket/x"), normalize("file:///x"), normalize("a/b")
  ('s3://bucket/x', '/x', 'a/b')

  Raises:
    InputError: a file:// URL names a machine.
  """
  url = _SCHEME.fullmatch(word)
  if url is None:
    return word
  scheme = url[1].lower()
  slashes = url[2]
  rest = url[3]
  if scheme == "file":
    # Between two slashes and the next one is the name of a machine.
    if len(slashes) == 2:
      machine, _, rest = rest.partition("/")
      if machine.lower() != "localhost":
        raise InputError(
          f"{escaped(word)} is a file of a machine called {escaped(machine)}:"
          " one of this machine has three slashes, as file:///folder."
        )
    return f"/{rest}"
  # One slash is what is left of two after pathlib, or after a slip. Of other
  # schemes x:/y is the name of a file, which may have a colon.
  scheme = _SAME_SCHEMES.get(scheme, scheme)
  if len(slashes) == 1 and scheme not in _STORE_SCHEMES:
    return word
  return f"{scheme}://{rest}"


def parse_place(word: str) -> pathlib.Path:
  """Returns the place that a word of the command line names; see `normalize`.

  URLs of other stores keep their slashes; they are refused when opened.
  """
  place = normalize(word)
  url = _SCHEME.fullmatch(place)
  if url is None or len(url[2]) == 1:
    return pathlib.Path(place)
  return Url(place)


def as_place(place: str | os.PathLike) -> pathlib.Path:
  """Returns the place that an argument names.

  A pathlib.Path of a URL has lost a slash, which is put back.

  Args:
    place: a word, a path, or a `Url`.

  Raises:
    InputError: it is none of these.
  """
  if not isinstance(place, str | os.PathLike):
    raise InputError(f"{place!a:.80} must be a path.")
  if isinstance(place, Url):
    return place
  text = os.fspath(place)
  url = storage.URL.fullmatch(text)
  if url is None:
    return parse_place(text)
  scheme, bucket, name = url.groups()
  return Url(f"{scheme}://{bucket}/{name}")


def exists(place: pathlib.Path) -> bool:
  """Whether there is a file; on a disk, whatever it is.

  Args:
    place: a path, where a folder or a broken link counts as well; or a URL,
      where only an object of this very name does.

  Raises:
    InputError: the store refuses.
    RunError: it does not answer.
  """
  if not isinstance(place, Url):
    return os.path.lexists(place)
  try:
    storage.state(*_store_and_name(place))
  except FileNotFoundError:
    return False
  return True


def files_below(folder: pathlib.Path) -> list[pathlib.Path]:
  """All files below a folder, in order; none where there is no folder.

  InputError: the store refuses. RunError: it does not answer.
  """
  if isinstance(folder, Url):
    names = storage.list_files(storage.store_at(str(folder)))
    return [folder / name for name in names]
  return sorted(path for path in folder.rglob("*") if path.is_file())


def read(place: str | os.PathLike, most_bytes: int = MOST_BYTES) -> bytes:
  """All bytes of a file.

  Args:
    place: a path or a URL.
    most_bytes: more are refused before they are in memory.

  Raises:
    InputError: it does not exist, is no file, is too large or may not be read.
    RunError: a store does not answer.
  """
  place = as_place(place)
  if not isinstance(place, Url):
    return files.read_regular(place, most_bytes)
  data = storage.read(*_store_and_name(place), most_bytes)
  if data is None:
    raise InputError(f"{escaped(str(place))} does not exist.")
  return data


def check_creatable(place: pathlib.Path) -> None:
  """Raises RunError unless a file could be written, as far as a disk can tell.

  Nothing is left behind. A store is not asked.
  """
  if not isinstance(place, Url):
    files.check_creatable(place)


def write_new(place: pathlib.Path, data: bytes) -> bool:
  """Writes a file whole, unless there is one.

  Args:
    place: a path or a URL. On a disk the file has mode 0600, and its folder is
      made if it is missing.
    data: its content.

  Returns:
    Whether it was written. In a store, a file that another writer put there at
    the same time with the same content counts as written.

  Raises:
    InputError: a store refuses.
    RunError: disk or store fail.
  """
  if not isinstance(place, Url):
    return files.write_once(place, data)
  # Looked for first: of a file that was there with the same bytes,
  # `write_if_absent` cannot tell that somebody else wrote it.
  if exists(place):
    return False
  return storage.write_if_absent(*_store_and_name(place), data) == data


def replace(place: pathlib.Path, data: bytes, mode: int = 0o600) -> None:
  """Writes a file whole, in place of one that may be there.

  Nobody sees half of it: on a disk it is written beside the place first.

  Args:
    place: a path or a URL.
    data: its content.
    mode: which on a disk it has.

  Raises:
    RunError: disk or store fail.
  """
  if isinstance(place, Url):
    storage.overwrite(*_store_and_name(place), data)
    return
  files.replace(place, data, mode)


def _store_and_name(url: Url) -> tuple[Store, str]:
  """The store of a file's folder, and its name there."""
  return storage.store_at(str(url.parent)), url.name
