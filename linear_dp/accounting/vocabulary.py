"""dp_accounting, and its words for events and relations, imported lazily.

`import dp_accounting` imports all of itself and most of SciPy: twice what else
it takes to read a ledger. So its own `__init__` waits here until something is
asked for that is none of its modules.
"""

import importlib
import importlib.util
import sys
import threading
import types
from typing import Any


class _Package(types.ModuleType):
  """A package whose `__init__` runs when a name of it is first looked up."""

  complete = False

  def __getattr__(self, name: str) -> Any:
    if not name.startswith("__"):
      if importlib.util.find_spec(f"{self.__name__}.{name}"):
        return importlib.import_module(f"{self.__name__}.{name}")
      with _running:
        if not self.complete:
          assert self.__spec__
          assert self.__spec__.loader
          self.__spec__.loader.exec_module(self)
          self.complete = True
      if name in vars(self):
        return vars(self)[name]
    raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


_running = threading.RLock()

if "dp_accounting" not in sys.modules:
  _found = importlib.util.find_spec("dp_accounting")
  assert _found
  _package = importlib.util.module_from_spec(_found)
  _package.__class__ = _Package
  sys.modules["dp_accounting"] = _package

import dp_accounting  # noqa: E402
from dp_accounting.dp_event import (  # noqa: E402
  ComposedDpEvent,
  DpEvent,
  GaussianDpEvent,
  NonPrivateDpEvent,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
)
from dp_accounting.privacy_accountant import NeighboringRelation  # noqa: E402

__all__ = [
  "ComposedDpEvent",
  "DpEvent",
  "GaussianDpEvent",
  "NeighboringRelation",
  "NonPrivateDpEvent",
  "PoissonSampledDpEvent",
  "SelfComposedDpEvent",
  "dp_accounting",
]
