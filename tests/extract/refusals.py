"""Errors as a user meets them."""

import contextlib
from collections.abc import Iterator

import pytest

from oneshot_dp.configs.errors import InputError


@contextlib.contextmanager
def refused(
  message: str, kind: type[Exception] = InputError
) -> Iterator[pytest.ExceptionInfo]:
  """An error whose text matches, on one line."""
  with pytest.raises(kind, match=message) as caught:
    yield caught
  assert str(caught.value).isprintable()
