"""Outputs at gs:// or s3://: made whole on a disk, then put into the bucket.

A store has no rename that shows a folder at once. So nothing is put before all
files are made, and the files that readers look for, receipts and results.json,
are put last: without them there is no head and no run.

The files of a run are kept beside its ledger until all of them are in the
bucket. Whoever types the same command again names the same ledger, also in
another container: what the ledger has noted is found there, and the rest of
these very bytes is put.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.files import disk_errors
from oneshot_dp.extract.places import Url
from oneshot_dp.pipeline.ledger.staged_output import StagedOutput, lock_folder

_PUT_LAST = ("receipt.json", "results.json")
"""A folder that has one of these files is complete, with all its folders."""
_PROBE = ".oneshot-dp-write-test"
"""An object that is put and removed, to see that this is permitted."""


class BucketOutput(StagedOutput):
  """A folder in a bucket, and the folder on a disk where it is made before.

  *Formal guarantees*: before `publish` nothing of what was staged is in the
  bucket. In a store that keeps to `If-None-Match` no object is ever written
  over: of two outputs with one URL, the one that is second at the first object
  that differs puts no more.
  """

  def __init__(self, url: Url, ledger: Path | None = None):
    """Names the place; nothing is touched before `lock`.

    Args:
      url: the folder.
      ledger: the file of the ledger beside which files are kept that are not
        all put; None keeps none.

    Raises:
      InputError: it is a URL of another kind.
    """
    super().__init__(resumable=ledger is not None)
    self.path = url
    self._url = url
    self._ledger = ledger
    self._store = storage.store_at(str(url))

  def lock(self) -> None:
    """Takes the place, or refuses, once it is sure that it can be written.

    Raises:
      InputError: another process with this ledger writes it, something else
        is there already, or the credentials do not allow to list, put and
        remove objects.
      RunError: the disk or the store refuses.
    """
    if self._ledger is None:
      with disk_errors(tempfile.gettempdir()):
        work_folder = Path(tempfile.mkdtemp(prefix="oneshot-dp-"))
    else:
      work_folder = work_folder_of(self._url, self._ledger)
    self.staging = work_folder / "whole"
    with disk_errors(work_folder):
      # The mode that the ledger would give to its folder.
      work_folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
      self._lock_handle = self._lock(work_folder)
      # Of a process that was killed after it had put everything.
      shutil.rmtree(work_folder / "shown", ignore_errors=True)
    try:
      self._refuse_other_objects()
      self._try_to_write()
    except BaseException:
      self.unlock()
      raise

  def publish(self) -> None:
    """Puts all files, those last that make the output complete.

    Raises:
      RunError: the store refuses, or has another object of one name.
    """
    remedy = "remove what is there, and run the same command again."
    if self._ledger is not None:
      remedy = (
        "the ledger has noted the results, and they are kept beside it: the"
        " same command puts the rest."
      )
    try:
      self._put_files()
      self._refuse_lost_objects()
    except (InputError, RunError) as error:
      raise RunError(f"{error} Not all was put: {remedy}") from error
    except KeyboardInterrupt as error:
      raise KeyboardInterrupt(
        f"interrupted; not all was put into {self.path}: {remedy}"
      ) from error
    # A rename, which a kill cannot halve: of files that are partly removed the
    # next run could not tell what the ledger has noted.
    with disk_errors(self.staging):
      self.staging.rename(self.staging.with_name("shown"))

  def _lock(self, work_folder: Path) -> int:
    """Makes and locks the hidden folder; returns the open lock.

    *Formal guarantees*: of two processes with one ledger one has the folder,
    wherever the ledger's own locks hold.
    """
    handle = lock_folder(work_folder, self.path)
    # Two machines may share the ledger's disk. There flock may hold on each
    # alone, but SQLite's kind of lock holds between them, or it is no place for
    # a ledger. Without it one could put what the other has not noted.
    is_held = False
    with contextlib.suppress(BlockingIOError, PermissionError):
      fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
      # Whoever held it before removes the folder as its last act.
      lock_file = os.stat(work_folder / "lock")
      is_held = os.path.samestat(os.fstat(handle), lock_file)
    if not is_held:
      os.close(handle)
      raise InputError(
        f"another run is writing {self.path}; wait for it, or choose another"
        " place."
      )
    return handle

  def _put_files(self) -> None:
    for name in _in_order(_files_below(self.staging)):
      content = (self.staging / name).read_bytes()
      existing = storage.write_if_absent(self._store, name, content)
      if existing != content:
        raise RunError(
          f"{self._store.display_path(name)} was put by another meanwhile, and"
          " is left as it is: remove it first."
        )

  def _refuse_lost_objects(self) -> None:
    """Asks the store for all that was put, before the files are removed."""
    listed = storage.list_files(self._store)
    for name in _files_below(self.staging):
      size, _ = listed.get(name, (None, ""))
      if size != (self.staging / name).stat().st_size:
        raise RunError(
          f"{self._store.display_path(name)} was put, and the store does not"
          " have it whole."
        )

  def _refuse_other_objects(self) -> None:
    """Refuses a folder that has objects which a killed run did not put."""
    sizes = {}
    for name, (size, _) in storage.list_files(self._store).items():
      sizes[name] = size
    # A listing may lag behind what was put, and these tell of a whole output.
    for name in _PUT_LAST:
      with contextlib.suppress(FileNotFoundError):
        sizes[name], _ = storage.state(self._store, name)
    # The probe of a process that was killed; and the empty object by which
    # consoles show a folder.
    sizes.pop(_PROBE, None)
    if sizes.get("") == 0:
      sizes.pop("")
    for name, size in sizes.items():
      if not self._has_staged(name, size):
        raise InputError(
          f"{self.path} already exists, as it has {name!a}; choose another"
          " place."
        )
      self.is_half_shown = True

  def _has_staged(self, name: str, size: int) -> bool:
    """Whether an object has the bytes of the staged file of its name."""
    if name not in _files_below(self.staging):
      return False
    content = (self.staging / name).read_bytes()
    if len(content) != size:
      return False
    return storage.read(self._store, name, size) == content

  def _try_to_write(self) -> None:
    """Puts an object as `publish` does, and removes it."""
    # If the store refuses after the charge, a budget is lost until that is
    # fixed: so it is tried before.
    storage.remove(self._store, [_PROBE])  # of a process that was killed
    storage.write_if_absent(self._store, _PROBE, b"oneshot-dp\n")
    storage.remove(self._store, [_PROBE])


def work_folder_of(url: Url, ledger: Path) -> Path:
  """The hidden folder beside a ledger for what is to be shown at a URL.

  Args:
    url: where the results are to be shown.
    ledger: the file of the ledger that notes them.

  Returns:
    A path in the ledger's folder, the same in every process.
  """
  # By the ledger's name as well: what one has noted is to another what nobody
  # has seen, and would be thrown away.
  ledger = ledger.resolve()
  digest = hashlib.sha256(str(url).encode()).hexdigest()[:16]
  return ledger.with_name(f".{ledger.name}.{digest}.unfinished")


def is_half_put(url: Url, ledger: Path) -> bool:
  """Whether files of a run are kept that may not all be in the bucket yet.

  Args:
    url: where the results are to be shown.
    ledger: the file of the ledger that notes them.
  """
  return (work_folder_of(url, ledger) / "whole").exists()


def _files_below(folder: Path) -> list[str]:
  """Names of all files below a folder, which may not exist."""
  names = []
  for path in folder.rglob("*"):
    if path.is_file():
      names.append(path.relative_to(folder).as_posix())
  return names


def _in_order(names: Iterable[str]) -> list[str]:
  """Names in the order in which they are put: what completes is last.

  >>> _in_order(["results.json", "heads/2/receipt.json", "heads/2/z", "a"])
  ['a', 'heads/2/z', 'heads/2/receipt.json', 'results.json']
  """

  def rank(name: str) -> tuple[int, str]:
    base = name.rpartition("/")[2]
    if base in _PUT_LAST:
      return 1 + _PUT_LAST.index(base), name
    return 0, name

  return sorted(names, key=rank)
