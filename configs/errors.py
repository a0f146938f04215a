"""Errors that a person can mend; the command line prints them as one line.

Everything else that escapes is a bug in oneshot-dp and keeps its traceback.
"""


class InputError(ValueError):
  """What was asked cannot be done as asked; exit status 2.

  The message is one line: the value found, the place and the fix.
  """


class RunError(RuntimeError):
  """The request was sound, the run failed (disk, worker, data loss); exit 1."""


def check_positive(name: str, value: int | None) -> None:
  """Refuses a number below 1; None is a setting that is not given.

  Raises:
    InputError: `value` is 0 or less.
  """
  if value is not None and value < 1:
    raise InputError(f"{name}={value} must be at least 1.")
