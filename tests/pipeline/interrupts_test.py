"""A signal ends a command, whatever is running when it arrives."""

import gc
import signal
import time

import pytest

from oneshot_dp.pipeline.cli.interrupts import Interrupts


@pytest.fixture
def usual_handler():
  """Ctrl-C as in a program of its own; a suite may run with it ignored."""
  previous = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("usual_handler")
def test_interrupt_that_python_drops_in_a_callback_is_raised_again(capsys):
  """JAX has a callback of the garbage collector: Python drops its errors."""

  def interrupted(phase, info):
    gc.callbacks.remove(interrupted)
    signal.raise_signal(signal.SIGINT)
    time.sleep(0)  # where the handler runs

  gc.callbacks.append(interrupted)

  def work():
    gc.collect()
    time.sleep(1)

  with Interrupts(), pytest.raises(KeyboardInterrupt):
    work()

  assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("usual_handler")
def test_other_errors_that_python_drops_are_still_told(monkeypatch):
  told = []
  monkeypatch.setattr("sys.unraisablehook", told.append)

  class Broken:
    def __del__(self):
      raise ValueError("broken")

  with Interrupts():
    broken = Broken()
    del broken

  assert [details.exc_type for details in told] == [ValueError]
