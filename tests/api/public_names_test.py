"""What `import oneshot_dp` promises."""

import ast
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import oneshot_dp

HEAVY = (
  "apache_beam",
  "array_record",
  "dp_accounting",
  "jax",
  "numpy",
  "optax",
  "tensorflow_datasets",
)


def imported_for_types() -> dict[str, str]:
  """Name → module, of the imports under `if TYPE_CHECKING`."""
  source = pathlib.Path(oneshot_dp.__file__)
  (guarded,) = [
    node for node in ast.parse(source.read_text()).body if type(node) is ast.If
  ]
  return {
    alias.name: node.module or ""
    for node in guarded.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
  }


def test_public_names_are_listed_and_come_from_where_type_checkers_are_told():
  listed = re.findall(r"^\| `(\w+)`", oneshot_dp.__doc__ or "", re.MULTILINE)
  assert sorted(listed) == sorted(set(listed)) == oneshot_dp.__all__
  of_types = imported_for_types()
  # What needs scikit-learn, of which type checkers know nothing.
  homes = dict(oneshot_dp._HOMES)
  homes.pop("DPLinearClassifier")
  assert of_types == {n: f"oneshot_dp.{home}" for n, home in homes.items()}
  assert sorted(of_types) == oneshot_dp.__all__
  for name, home in of_types.items():
    assert getattr(oneshot_dp, name).__module__ == home
  # No name is a module's: importing the module would put it where the name was.
  modules = {info.name for info in pkgutil.iter_modules(oneshot_dp.__path__)}
  assert not modules & set(oneshot_dp.__all__)
  assert set(oneshot_dp.__all__) <= set(dir(oneshot_dp))
  with pytest.raises(AttributeError, match=r"'oneshot_dp' has no .*'nothing'"):
    _ = oneshot_dp.nothing


def test_nothing_heavy_is_imported_before_it_is_used():
  code = (
    "import sys, oneshot_dp, oneshot_dp.configs.head_config\n"
    "dir(oneshot_dp)\n"
    f"print([name for name in {HEAVY} if name in sys.modules])"
  )
  found = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert found.stdout == "[]\n"
