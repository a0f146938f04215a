"""Experiments by name: one file in `experiments` each, with a get_config()."""

import contextlib
import difflib
import importlib
import pkgutil
import runpy
from collections.abc import Iterator
from pathlib import Path

from oneshot_dp.configs import experiments
from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ExtractConfig


def experiment_names() -> list[str]:
  """The experiments that come with oneshot-dp, sorted."""
  return sorted(_modules())


def _modules() -> dict[str, str]:
  root = f"{experiments.__name__}."
  found = pkgutil.walk_packages(experiments.__path__, root)
  return {m.name.rpartition(".")[2]: m.name for m in found if not m.ispkg}


def load_config(name: str) -> ExtractConfig:
  """The config of an experiment; InputError where it has none that works."""
  if name.endswith(".py"):
    if not Path(name).is_file():
      raise InputError(f"{name}: no such config file.")
    with _user_code(name):
      found = runpy.run_path(name)
  elif home := _modules().get(name):
    found = vars(importlib.import_module(home))
  else:
    near = difflib.get_close_matches(name, experiment_names(), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "there are:"
    raise InputError(
      f"CONFIG {name!r} is not known; {hint}"
      f" {'' if near else ', '.join(experiment_names())}".rstrip()
      + " (A path ends in .py.)"
    )
  get_config = found.get("get_config")
  with _user_code(name):
    config = get_config() if callable(get_config) else None
  if not isinstance(config, ExtractConfig):
    raise InputError(
      f"{name}: needs a function get_config() that returns an ExtractConfig."
    )
  return config


@contextlib.contextmanager
def _user_code(name: str) -> Iterator[None]:
  """A config file is code, and fails as it likes; says so in one line."""
  try:
    yield
  except (InputError, KeyboardInterrupt):
    raise
  except BaseException as error:  # sys.exit among them
    raise InputError(f"{name}: {type(error).__name__}: {error}") from error
