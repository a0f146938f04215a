import contextlib
import sys

import pytest
from tqdm import tqdm

from oneshot_dp.extract.progress import step_bar
from oneshot_dp.pipeline.shell.terminal import Output, as_asked
from tests.pipeline.command_line import Terminal


@pytest.fixture
def screen():
  return Terminal()


def talk() -> None:
  """Everything that commands and the libraries under them say."""
  print("Downloading and preparing …")
  print("head: lamb, as it is", file=sys.stderr)
  print("warning: delta=0.1 is not below 1/n", file=sys.stderr)
  with step_bar("evaluate", "row", 2) as bar:
    bar.update(2)
  for _ in tqdm(range(2), disable=None):
    tqdm.write("charged to x", file=sys.stderr)


def said(output: Output, screen: Terminal) -> tuple[str, str]:
  printed = Terminal()
  with (
    contextlib.redirect_stdout(printed),
    contextlib.redirect_stderr(screen),
    as_asked(output),
  ):
    talk()
  return printed.getvalue(), screen.getvalue()


def test_a_terminal_gets_all_of_it(screen):
  out, err = said(Output(), screen)
  assert out == ""
  for words in ("Downloading", "head: lamb", "warning: delta", "charged to x"):
    assert words in err
  assert "evaluate:   0%" in err
  assert "| 2/2 [" in err


def test_json_has_no_bars_and_nothing_on_standard_output(screen):
  assert said(Output(json=True), screen) == (
    "",
    "Downloading and preparing …\n"
    "head: lamb, as it is\n"
    "warning: delta=0.1 is not below 1/n\n"
    "charged to x\n"
    "charged to x\n",
  )


def test_quiet_keeps_the_warnings(screen):
  for json in (False, True):
    screen.truncate(screen.seek(0))
    out, err = said(Output(quiet=True, json=json), screen)
    assert (out, err) == ("", "warning: delta=0.1 is not below 1/n\n")


def test_what_has_no_line_break_is_not_lost(screen):
  with contextlib.redirect_stderr(screen), as_asked(Output(quiet=True)):
    sys.stderr.write("warning: cut ")
    sys.stderr.write("off")
  assert screen.getvalue() == "warning: cut off\n"


def test_an_error_within_leaves_the_streams_as_they_were(screen):
  with (
    contextlib.redirect_stderr(screen),
    pytest.raises(KeyError),
    as_asked(Output(quiet=True)),
  ):
    raise KeyError
  print("after", file=screen)
  assert screen.getvalue() == "after\n"
  assert not screen.closed
