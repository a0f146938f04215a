"""Which commands there are. A NEW COMMAND GOES HERE, as one row."""

import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType

_MODULES = {
  "inspect": "data.inspect",
  "extract": "data.extract",
  "train": "heads.train",
  "evaluate": "heads.evaluate",
  "predict": "heads.predict",
  "budget": "privacy.budget",
  "backbones": "data.backbones",
  "import": "data.import_features",
  "sweep": "heads.sweep",
  "compare": "heads.compare",
  "figures": "studies.figures",
  "ablate": "studies.ablate",
  "report": "studies.report",
  "verify": "privacy.verify",
  "budget set": "privacy.budget_set",
  "export": "heads.export",
  "audit": "privacy.audit",
  "demo": "studies.demo",
  "completion": "completion",
}
"""In the order of the help, which begins with the six that everybody needs;
"budget set" is two words."""
_ALIASES = {"import-features": "import"}


class _Commands(Mapping[str, ModuleType]):
  """The modules by name, each imported when it is asked for."""

  def __getitem__(self, name: str) -> ModuleType:
    module = _MODULES[_ALIASES.get(name, name)]
    return importlib.import_module(f"{__package__}.{module}")

  def __iter__(self) -> Iterator[str]:
    return iter(_MODULES)

  def __len__(self) -> int:
    return len(_MODULES)


COMMANDS = _Commands()
