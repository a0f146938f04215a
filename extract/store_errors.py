"""What a disk or an object store refuses, in one line."""

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError, escaped

URL = re.compile(r"(gs|s3):/+([^/]+)/*(.*)")
"""A pathlib.Path has lost the second slash."""
PERMISSIONS = {
  "read": {"s3": "s3:GetObject", "gs": "storage.objects.get"},
  "list": {"s3": "s3:ListBucket", "gs": "storage.objects.list"},
  "write": {"s3": "s3:PutObject", "gs": "storage.objects.create"},
  "remove": {"s3": "s3:DeleteObject", "gs": "storage.objects.delete"},
}
"""All that is ever asked of a store, and what must be granted for it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Store:
  """A folder; `remote` is obstore's, or None on a disk."""

  place: str
  remote: Any = None

  @property
  def folder(self) -> pathlib.Path:
    """The folder on the disk."""
    return pathlib.Path(self.place)

  def where(self, name: str = "") -> str:
    """The path or URL of a file in it, or of itself, for messages."""
    return escaped(f"{self.place.rstrip('/')}/{name}" if name else self.place)


@contextlib.contextmanager
def store_errors(store: Store, name: str, action: str) -> Iterator[None]:
  """Says in one line what a disk or a store refuses.

  Raises:
    FileNotFoundError, FileExistsError: as of a disk.
    InputError: no permission, no credentials, no bucket.
    RunError: what may go well another time.
  """
  try:
    yield
  except (FileNotFoundError, FileExistsError, InputError, RunError):
    raise
  except OSError as e:
    raise InputError(
      f"{store.where(name)}: cannot {action} it: {e.strerror or e}."
    ) from e
  except Exception as e:
    raise _refusal(e, store, name, action) from e


def _refusal(error: Any, store: Store, name: str, action: str) -> Exception:
  from obstore import exceptions

  where = store.where(name)
  url = URL.fullmatch(store.place)
  scheme, bucket = (url[1], url[2]) if url else ("s3", "")
  if not isinstance(error, exceptions.BaseError):
    return error
  if isinstance(error, exceptions.NotFoundError) and action in "read remove":
    return FileNotFoundError(where)
  if isinstance(
    error, exceptions.AlreadyExistsError | exceptions.PreconditionError
  ):
    return FileExistsError(where)
  reason = str(error).split("\n")[0]  # The rest is for debugging, and long.
  if isinstance(
    error,
    exceptions.PermissionDeniedError | exceptions.UnauthenticatedError,
  ) or re.search("40[13] (Forbidden|Unauthorized)", reason):
    return InputError(
      f"{where}: these credentials lack the permission"
      f" {PERMISSIONS[action][scheme]}; grant it, or log in as for the store's"
      " own tools."
    )
  if isinstance(error, exceptions.NotFoundError) or "404 Not Fo" in reason:
    return InputError(f"{scheme}://{bucket}: there is no such bucket.")
  if "169.254.169.254" in reason or "metadata.google" in reason:
    # Where virtual machines have theirs; it is asked last.
    return InputError(
      f"{scheme}://{bucket}: no credentials were found; log in as for the"
      " store's own tools, or set their environment variables."
    )
  return RunError(
    f"{where}: {escaped(reason)[:300]}; run the same command again (what is"
    " finished is kept)."
  )
