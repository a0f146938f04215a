"""What all commands share."""

import resource
import signal

import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.shell.parser import parse
from tests.extract.image_jobs import write_folder
from tests.pipeline.command_line import (
  CONFIG,
  EXTRACT,
  EXTRACT_PHOTOS,
  TRAIN,
  fails,
  one_line,
  start,
)


class TestCommandLine:
  @pytest.mark.parametrize(
    ("words", "said"),
    [
      (
        "train --cash x --epsilon 1 --delta 1e-5",
        "Missing from oneshot-dp train: --cache PATH --out PATH. Unrecognized"
        " options: --cash x; did you mean --cache? see oneshot-dp train --help",
      ),
      (
        "audit --epsilon 1 --delta 1e-5 --heed 1",
        "Unrecognized options: --heed, 1; did you mean --head? see oneshot-dp"
        " audit --help",
      ),
      *(
        (
          f"{command} --neighboring-relation add-or-remove-one",
          "invalid choice 'add-or-remove-one' for argument"
          " '--neighboring-relation'. Expected one of ('replace-special',"
          " 'replace-one'); n is published, and tells one row more from one"
          " less; use replace-special (a row, or nothing in its place), which"
          f" takes the same noise; see oneshot-dp {name} --help",
        )
        for name, command in (
          ("train", "train --cache x --epsilon 1 --delta 1e-5 --out y"),
          (
            "budget set",
            "budget set --cache x --max-epsilon 1 --max-delta 0.1",
          ),
        )
      ),
    ],
  )
  def test_one_hint_for_each_mistake(self, capsys, words, said):
    assert fails(capsys, *words.split()) == said

  def test_help_shows_the_experiments_own_defaults(self, capsys):
    with pytest.raises(SystemExit):
      main(["extract", "digits_random_patches", "--help"])
    out = capsys.readouterr().out
    assert "sklearn_digits" in out
    assert "Experiments: arrays_vit_ti16" in " ".join(out.split())

  @pytest.mark.slow
  def test_beams_flags_are_kept_apart(self, place):
    flags = ["--runner=FlinkRunner", "--flink_master", "host:1"]
    asked = parse([*place(EXTRACT), *flags], COMMANDS).flags
    assert list(asked.beam_options) == flags
    assert asked.job.decode_threads == 1

  @pytest.mark.parametrize(
    ("words", "said"),
    [
      (EXTRACT, "interrupted; an extraction resumes"),
      (TRAIN, "interrupted; what was charged to a ledger stays charged"),
    ],
  )
  def test_ctrl_c_has_no_traceback(
    self, monkeypatch, capsys, place, words, said
  ):
    def stop(*args):
      raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS[words.split()[0]], "run", stop)
    assert said in fails(capsys, *place(words), status=130)

  def test_ctrl_c_that_a_library_swallows(self, monkeypatch, capsys, place):
    """As NumPy does while it is imported."""

    def swallow(*args):
      try:
        signal.raise_signal(signal.SIGINT)
      except KeyboardInterrupt:
        raise ImportError("a module failed to import") from None

    monkeypatch.setattr("oneshot_dp.pipeline.shell.parser.parse", swallow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
      line = fails(capsys, *place(TRAIN), status=130)
    finally:
      signal.signal(signal.SIGINT, before)
    assert line == "interrupted; nothing was charged or written"


@pytest.mark.slow
class TestProcess:
  """As a person starts it."""

  def test_an_undecodable_image_among_threads(self, place, tmp_path):
    """Other threads are busy in C++ when the first one fails."""
    files = write_folder(tmp_path / "photos", 150, side=64, bad=[40])
    threads = "--direct_running_mode=multi_threading --direct_num_workers=4"
    process = start(place(f"{EXTRACT_PHOTOS} {threads}"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert one_line(err).startswith(f"{files[40]} (example_id=40)")

  def test_threads_that_are_busy_do_not_hold_up_a_failure(
    self, place, tmp_path
  ):
    """Nor does the interpreter take them down with it, which would abort."""
    busy = "\nimport threading, time"
    busy += "\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    (tmp_path / "config.py").write_text(CONFIG + busy)
    process = start(place("extract {config} stray --out {out}"))
    try:
      _, err = process.communicate(timeout=45)
    finally:
      process.kill()
    assert process.returncode == 2
    assert "'stray' is one word too many" in one_line(err)

  def test_ctrl_c_at_the_very_end(self):
    """While the interpreter shuts down there is nothing left to tell."""
    slow = "import atexit, time; atexit.register(time.sleep, 60)"
    slow += "; atexit.register(print, 'shutting down', flush=True)"
    process = start(["completion", "bash"], first=slow)
    assert process.stdout is not None
    while process.stdout.readline() != "shutting down\n":
      assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGINT, "")

  def test_a_reader_that_has_gone(self, place):
    process = start(place("inspect {train}"))
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stream:
      assert stream.read() == ""
    assert process.wait(60) == 1


def test_an_address_space_that_is_too_small_is_said(monkeypatch, capsys):
  """Within 2 GB XLA hangs, or aborts, in C++ where nothing can be caught."""
  monkeypatch.setattr(resource, "getrlimit", lambda _: (2 << 30, -1))
  line = "train --cache x --epsilon 1 --delta 1e-5 --out y"
  assert main(line.split()) == 1
  (said,) = capsys.readouterr().err.splitlines()
  assert "limited to 2.0 GB (ulimit -v), and JAX asks for 4 GB" in said
  assert main(["budget", "--cache", "x"]) == 2  # it needs no JAX
