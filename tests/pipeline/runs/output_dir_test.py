import os
import stat

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.runs.output_dir import check_absent, whole_directory
from tests.pipeline.small_disk import files_no_larger_than


def test_it_appears_whole(tmp_path):
  out = tmp_path / "new" / "results"
  with whole_directory(out) as directory:
    (directory / "a.txt").write_text("a")
    assert not out.exists()
  assert [p.name for p in out.iterdir()] == ["a.txt"]
  assert [p.name for p in out.parent.iterdir()] == ["results"]


@pytest.mark.parametrize(
  ("umask", "mode"), [(0o022, 0o755), (0o077, 0o700), (0o002, 0o775)]
)
def test_its_mode_is_what_the_umask_says(tmp_path, umask, mode):
  before = os.umask(umask)
  try:
    with whole_directory(tmp_path / "out") as directory:
      # Until it is whole, nobody else can look.
      assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
  finally:
    os.umask(before)
  assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode


def test_modes_that_were_set_are_kept(tmp_path):
  with whole_directory(tmp_path / "out") as directory:
    (directory / "inner").mkdir(mode=0o700)
    directory.chmod(0o700)
  for path in (tmp_path / "out", tmp_path / "out" / "inner"):
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_an_empty_directory_may_be_there(tmp_path):
  check_absent(tmp_path)
  with whole_directory(tmp_path / "out"):
    (tmp_path / "out").mkdir()
  assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_nothing_is_left_when_the_block_fails(tmp_path, error):
  def write() -> None:
    with whole_directory(tmp_path / "out") as directory:
      (directory / "a.txt").write_text("a")
      raise error

  with pytest.raises(error):
    write()
  assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path):
  def write() -> None:
    with whole_directory(tmp_path / "out") as directory:
      (directory / "a.txt").write_text("a" * 100)
      (directory / "b.txt").write_text("b" * 2000)

  with (
    files_no_larger_than(1000),
    pytest.raises(RunError, match=r"out cannot be written: File too large\."),
  ):
    write()
  assert not list(tmp_path.iterdir())


def test_results_that_came_meanwhile_are_not_overwritten(tmp_path):
  def write() -> None:
    with whole_directory(tmp_path / "out") as directory:
      (directory / "mine.txt").write_text("mine")
      (tmp_path / "out").mkdir()
      (tmp_path / "out" / "theirs.txt").write_text("theirs")

  with pytest.raises(RunError, match="out cannot be written"):
    write()
  assert [p.name for p in tmp_path.iterdir()] == ["out"]
  assert [p.name for p in (tmp_path / "out").iterdir()] == ["theirs.txt"]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_there_is_refused(tmp_path, kind):
  out = tmp_path / "out"
  if kind == "file":
    out.write_text("mine")
  else:
    (out / "inner").mkdir(parents=True)
  with pytest.raises(InputError, match="out already holds something; name"):
    check_absent(out)


def test_a_file_where_a_folder_should_be(tmp_path):
  (tmp_path / "file").write_text("mine")
  with pytest.raises(RunError, match=r"cannot be made: .*file is not writable"):
    check_absent(tmp_path / "file" / "deep" / "out")
