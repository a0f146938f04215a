"""Runs commands as `python -m oneshot_dp` does, for golden files and tests."""

import contextlib
import io
import json
import pathlib
import re
import warnings
from typing import Any

from oneshot_dp import __main__ as program

# They differ from run to run, or from machine to machine; "said" and "notes"
# are sentences for people.
VOLATILE = {
  "charge",
  "libraries",
  "notes",
  "releases_sha256",
  "said",
  "time",
  "weights_sha256",
}


def run_command(line: str) -> tuple[int, str, str]:
  """Exit status, standard output and standard error of one command line."""
  out = io.StringIO()
  err = io.StringIO()
  with (
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
    warnings.catch_warnings(),
  ):
    # A command prints its warnings; in a test they would be errors.
    warnings.simplefilter("default")
    try:
      status = program.main(line.split())
    except SystemExit as stop:
      status = int(stop.code or 0)
  return status, out.getvalue(), err.getvalue()


def json_of(line: str) -> dict[str, Any]:
  """What a command that succeeds says with `--json`."""
  status, out, err = run_command(f"{line} --json")
  assert status == 0, f"{line}\n{err}"
  return json.loads(out)


def settled(value: Any) -> Any:
  """A JSON value without what differs from run to run."""
  if isinstance(value, dict):
    return {
      key: "VOLATILE" if key in VOLATILE else settled(each)
      for key, each in value.items()
    }
  if isinstance(value, list):
    return [settled(each) for each in value]
  if isinstance(value, str):
    text = value.replace(str(pathlib.Path.cwd()), "WORK")
    return re.sub(r"charge [0-9a-f]{12}", "charge CHARGE", text)
  return value


def key_paths(value: Any, path: str = "") -> set[str]:
  """The keys of a JSON value, as "a.b[].c"; the items of a list are one."""
  paths = set()
  if isinstance(value, dict):
    for key, each in value.items():
      name = f"{path}.{key}" if path else key
      paths |= {name} | key_paths(each, name)
  elif isinstance(value, list):
    for each in value:
      paths |= key_paths(each, f"{path}[]")
  return paths
