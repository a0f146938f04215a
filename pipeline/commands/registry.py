"""Which commands there are. A NEW COMMAND GOES HERE, as one row."""

import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType

_MODULES = {
  "extract": "data.extract",
  "backbones": "data.backbones",
  "import-features": "data.import_features",
  "inspect": "data.inspect",
  "verify": "privacy.verify",
  "train": "heads.train",
  "sweep": "heads.sweep",
  "compare": "heads.compare",
  "figures": "studies.figures",
  "ablate": "studies.ablate",
  "evaluate": "heads.evaluate",
  "recover": "heads.recover",
  "predict": "heads.predict",
  "export": "heads.export",
  "report": "studies.report",
  "budget": "privacy.budget",
  "budget set": "privacy.budget_set",
  "audit": "privacy.audit",
  "demo": "studies.demo",
  "completion": "completion",
}
"""In the order of the help; "budget set" is two words."""


class _Commands(Mapping[str, ModuleType]):
  """The modules by name, each imported when it is asked for."""

  def __getitem__(self, name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{_MODULES[name]}")

  def __iter__(self) -> Iterator[str]:
    return iter(_MODULES)

  def __len__(self) -> int:
    return len(_MODULES)


COMMANDS = _Commands()
