"""What people read, with room for values: a template for each file."""

import importlib.resources
from collections.abc import Callable
from typing import Any

import jinja2


def filled_in(name: str, *filters: Callable[..., str], **values: Any) -> str:
  """A template with these values; filters are named as their functions are."""
  environment = jinja2.Environment(
    autoescape=name.endswith(".html"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  environment.filters |= {f.__name__.removeprefix("_"): f for f in filters}
  file = importlib.resources.files(__name__) / f"{name}.j2"
  return environment.from_string(file.read_text("utf-8")).render(values)
