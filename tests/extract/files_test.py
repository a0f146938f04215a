"""Files on the disk of this machine."""

import contextlib
import os
import subprocess
import sys

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import files, storage
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import write_files


def test_what_is_listed(tmp_path):
  write_files(tmp_path, "a/x", data=b"x")
  write_files(tmp_path, "a/b/y", data=b"yy")
  (tmp_path / "link").symlink_to(tmp_path / "a" / "x")
  (tmp_path / "gone").symlink_to(tmp_path / "none")
  (tmp_path / "zero").symlink_to("/dev/zero")
  (tmp_path / "self").symlink_to("self")
  (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
  (tmp_path / "twice").symlink_to(tmp_path / "a" / "b")
  os.mkfifo(tmp_path / "fifo")
  listed = storage.list_files(storage.store_at(tmp_path))
  found = {name: size for name, (size, _) in listed.items()}
  assert found.pop("twice/up/x") == 1
  assert found.pop("a/b/y") == found.pop("twice/y") == 2
  assert found.pop("a/x") == found.pop("link") == 1
  assert found == dict.fromkeys(
    ("a/b/up", "fifo", "gone", "self", "twice/up/b", "zero"), -1
  )


def test_a_listing_that_is_not_finished_leaves_no_folder_open(tmp_path):
  write_files(tmp_path, "a/b/c", data=b"x")
  before = os.listdir("/proc/self/fd")
  walk = files.walk(str(tmp_path))
  while not next(walk).names:
    pass
  assert len(os.listdir("/proc/self/fd")) > len(before)

  del walk

  assert os.listdir("/proc/self/fd") == before


def test_folders_without_end_are_refused_by_name(tmp_path):
  with contextlib.chdir(tmp_path):  # as a path would be too long
    for _ in range(300):
      os.mkdir("inner")
      os.chdir("inner")

  with refused("'inner/inner/inner.*… lies within 257 folders, and may lie wi"):
    storage.list_files(storage.store_at(tmp_path))


def test_links_that_double_at_each_folder_are_refused(tmp_path):
  (tmp_path / "30").mkdir()
  for level in range(30):
    folder = tmp_path / f"{level}"
    folder.mkdir()
    for name in ("a", "b"):
      (folder / name).symlink_to(f"../{level + 1}")
    (folder / "image.png").write_bytes(b"image")

  with refused("links lead to one folder in more than 256 ways: remove some"):
    storage.list_files(storage.store_at(tmp_path))


def test_a_folder_that_many_links_lead_to_is_listed_by_all_of_them(tmp_path):
  write_files(tmp_path, "cats/a/x.png")
  (tmp_path / "folds").mkdir()
  for fold in range(256):
    (tmp_path / "folds" / f"{fold}").symlink_to("../cats")

  assert len(storage.list_files(storage.store_at(tmp_path))) == 257


def test_what_is_no_file_is_refused_at_once(tmp_path):
  path = tmp_path / "file\x1b[1m"
  for make in (
    lambda: None,
    lambda: os.mkfifo(path),
    lambda: path.symlink_to("/dev/zero"),
    lambda: path.touch() or os.truncate(path, 1 << 42),
    path.mkdir,
  ):
    path.unlink(missing_ok=True)
    make()
    with refused("cannot be read"):
      files.read_regular(path)


def test_sha256_of_a_disk_that_fails_names_the_file():
  # The first page of a process is mapped to nothing: to read it is an I/O
  # error, as of a broken disk.
  with refused("/proc/self/mem cannot be read: Input/output error"):
    files.sha256("/proc/self/mem")


@pytest.mark.parametrize("nameless", [True, False])
def test_written_once(tmp_path, monkeypatch, nameless):
  if not nameless:  # as on file systems without such files
    monkeypatch.delattr(os, "O_TMPFILE")
  path = tmp_path / "new" / "file"
  assert files.write_once(path, b"one")
  assert not files.write_once(path, b"two")
  assert path.read_bytes() == b"one"
  assert path.stat().st_mode & 0o777 == 0o600
  assert path.parent.stat().st_mode & 0o777 == 0o700
  assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
  def full(handle):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  with refused("cannot be written: No space left", RunError):
    files.write_once(tmp_path / "file", b"one")
  assert list(tmp_path.iterdir()) == []
  (tmp_path / "file").write_text("x")  # nor is it a folder
  with refused("cannot be written", RunError):
    storage.write_if_absent(storage.store_at(tmp_path / "file"), "a", b"x")


_PROGRAM_WITHOUT_CORE_DUMPS = """
import ctypes, resource
import oneshot_dp

oneshot_dp.disable_core_dumps()
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
print(len(open("/proc/self/status").read()) > 0)  # it can still read itself
"""


def test_a_program_that_asks_for_it_leaves_no_memory_to_any_core_pattern():
  run = subprocess.run(
    [sys.executable, "-c", _PROGRAM_WITHOUT_CORE_DUMPS],
    capture_output=True,
    text=True,
    check=True,
  )
  assert run.stdout.split() == ["0", "0", "True"]
