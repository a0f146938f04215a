"""Files on the disk of this machine."""

import os

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import files, storage
from tests.extract.refusals import refused


def test_what_is_listed(tmp_path):
  (tmp_path / "a" / "b").mkdir(parents=True)
  (tmp_path / "a" / "x").write_text("x")
  (tmp_path / "a" / "b" / "y").write_text("yy")
  (tmp_path / "link").symlink_to(tmp_path / "a" / "x")
  (tmp_path / "gone").symlink_to(tmp_path / "none")
  (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
  (tmp_path / "twice").symlink_to(tmp_path / "a" / "b")
  os.mkfifo(tmp_path / "fifo")
  listed = storage.listed(storage.store_at(tmp_path))
  found = {name: size for name, (size, _) in listed.items()}
  assert found.pop("twice/up/x") == 1
  assert found == {
    "a/b/up": -1,
    "a/b/y": 2,
    "a/x": 1,
    "fifo": -1,
    "gone": -1,
    "link": 1,
    "twice/up/b": -1,
    "twice/y": 2,
  }


def test_what_is_no_file_is_refused_at_once(tmp_path):
  path = tmp_path / "file\x1b[1m"
  for make, remove in (
    (lambda: None, lambda: None),
    (lambda: os.mkfifo(path), path.unlink),
    (path.mkdir, path.rmdir),
    (lambda: path.symlink_to("/dev/zero"), path.unlink),
    (lambda: path.touch() or os.truncate(path, 1 << 42), path.unlink),
  ):
    make()
    with refused("cannot be read") as caught:
      files.read_regular(path)
    assert "\x1b" not in str(caught.value)
    remove()


def test_written_once(tmp_path):
  path = tmp_path / "new" / "file"
  assert files.write_once(path, b"one")
  assert not files.write_once(path, b"two")
  assert path.read_bytes() == b"one"
  assert path.stat().st_mode & 0o777 == 0o600
  assert path.parent.stat().st_mode & 0o777 == 0o700
  assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_file_system_without_nameless_files(tmp_path, monkeypatch):
  monkeypatch.delattr(os, "O_TMPFILE")
  assert files.write_once(tmp_path / "file", b"one")
  assert not files.write_once(tmp_path / "file", b"two")
  assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
  def full(handle):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  with refused("cannot be written: No space left", RunError):
    files.write_once(tmp_path / "file", b"one")
  assert list(tmp_path.iterdir()) == []


def test_a_directory_that_may_not_be_written(tmp_path):
  (tmp_path / "file").write_text("x")
  with refused("cannot be written", RunError):
    storage.put_once(storage.store_at(tmp_path / "file"), "a", b"x")
