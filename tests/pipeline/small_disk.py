"""A disk that is full, as far as this process can tell."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
  """The system refuses to write beyond `size` bytes of any file.

  (It is the one limit on writing that needs no file system of its own; the
  error is EFBIG where a full disk's is ENOSPC.)
  """
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
