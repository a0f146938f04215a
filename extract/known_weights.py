"""Where weights files are on this machine, by their SHA-256.

A head states the SHA-256 of its backbone's weights and not their location,
which may be private. `extract --weights FILE` therefore notes the location in
the user's state folder, outside of every cache, so that `predict` and `export`
find the file again without a flag.
"""

import contextlib
import os
import pathlib
import re
import tempfile

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import files

_MAX_LOCATION_BYTES = 1 << 14


def remember_location(sha256: str, location: str) -> None:
  """Notes where the weights of this SHA-256 are.

  The note is a convenience: that it cannot be written is no error.

  Args:
    sha256: of the weights file, in hexadecimal.
    location: a path or a URL, as `local_weights` takes it.
  """
  if "://" not in location:
    location = os.path.abspath(os.path.expanduser(location))
  folder = _folder()
  with contextlib.suppress(OSError, UnicodeError):
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written aside and renamed: whoever reads finds a whole note.
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
      file.write(location)
    os.replace(temporary, folder / sha256)


def remembered_location(sha256: str) -> str | None:
  """Returns where the weights of this SHA-256 were last, if that is known.

  A path is returned only if that file is there still, and has this SHA-256.
  """
  if not re.fullmatch("[0-9a-f]{64}", sha256):
    return None
  try:
    # A file may have been replaced since. A URL is not asked now: whoever loads
    # it compares its SHA-256.
    note = files.read_regular(_folder() / sha256, _MAX_LOCATION_BYTES)
    location = note.decode("utf-8")
    if "://" in location or files.sha256(location) == sha256:
      return location
  except (InputError, UnicodeError):
    pass
  return None


def _folder() -> pathlib.Path:
  # Outside of caches and heads: where a file lies is a fact about this machine.
  state = os.environ.get("XDG_STATE_HOME", "")
  # By the XDG specification a relative path is to be ignored.
  if not os.path.isabs(state):
    state = os.path.expanduser("~/.local/state")
  return pathlib.Path(state) / "oneshot-dp" / "weights"
