import concurrent.futures
import contextlib
import io
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.progress import RowCounter, progress_bar


class Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
  # (Pytest puts its own stream back between a fixture and the test.)
  with contextlib.redirect_stderr(Terminal()) as screen:
    yield screen


def progress_threads() -> int:
  return sum(thread.name == "progress" for thread in threading.enumerate())


def test_threads_count_together():
  counter = RowCounter()

  def add(_: int) -> None:
    for _ in range(2000):
      counter.add(3)

  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  try:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
      list(pool.map(add, range(4)))
  finally:
    sys.setswitchinterval(interval)
  assert counter.value == 4 * 2000 * 3


def test_silent_in_a_pipe(capsys):
  with progress_bar(10, 0, lambda: 10, "train"):
    pass
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
  ("initial", "done", "shown"), [(8, 40, 40), (8, 8, 8), (30, 20, 30)]
)
def test_it_ends_at_what_was_done_and_never_moves_back(initial, done, shown):
  """Shards on disk and rows in memory are counted one after the other."""
  with terminal() as screen, progress_bar(40, initial, lambda: done, "train"):
    pass
  last = screen.getvalue().split("\r")[-1]
  for part in (f"train: {shown / 40:4.0%}", f"{shown}/40", "img/s"):
    assert part in last


def test_it_moves_while_the_job_runs():
  counter = RowCounter()

  def done() -> int:
    return counter.value

  with terminal() as screen, progress_bar(40, 0, done, "train"):
    counter.add(17)
    deadline = time.monotonic() + 60
    while "17/40" not in screen.getvalue():
      assert time.monotonic() < deadline
      time.sleep(0.02)


def test_what_watches_it_can_end_it():
  def watch(count: int) -> None:
    raise KeyError(f"{count} and no more")

  handler = signal.getsignal(signal.SIGUSR2)
  with (
    pytest.raises(KeyError, match="7 and no more"),
    progress_bar(10, 0, lambda: 7, "train", watch),
  ):
    threading.Event().wait(60)
  assert signal.getsignal(signal.SIGUSR2) == handler


def test_a_store_that_does_not_answer_is_watched_on():
  """Else a job that hangs after an outage would hang for ever."""
  answers = iter([RunError("timed out"), 7])
  seen = threading.Event()

  def done() -> int:
    if isinstance(answer := next(answers, 7), RunError):
      raise answer
    return answer

  def watch(count: int) -> None:
    if count == 7:
      seen.set()

  with progress_bar(10, 0, done, "train", watch):
    assert seen.wait(10)


def test_its_thread_ends_with_the_job():
  def job() -> None:
    with progress_bar(1, 0, lambda: 0, "train"):
      assert progress_threads() == 1
      raise KeyError("the job failed")

  with pytest.raises(KeyError, match="the job failed"):
    job()
  assert progress_threads() == 0
