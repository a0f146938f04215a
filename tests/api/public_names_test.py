"""What `import linear_dp` and `import extract` promise."""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

PACKAGES = ("linear_dp", "extract")
HEAVY = (
  "apache_beam",
  "array_record",
  "dp_accounting",
  "jax",
  "numpy",
  "optax",
  "tensorflow_datasets",
)
NAMES = [
  (package, name)
  for package in PACKAGES
  for name in importlib.import_module(package).__all__
]

of_each_package = pytest.mark.parametrize("package", PACKAGES)
of_each_name = pytest.mark.parametrize(("package", "name"), NAMES)


def imported_for_types(package: str) -> dict[str, str]:
  """Name → module, of the imports under `if TYPE_CHECKING`."""
  source = pathlib.Path(importlib.import_module(package).__file__ or "")
  (guarded,) = [
    node for node in ast.parse(source.read_text()).body if type(node) is ast.If
  ]
  return {
    alias.name: node.module or ""
    for node in guarded.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
  }


@of_each_package
def test_the_table_of_the_docstring_lists_all_public_names(package):
  module = importlib.import_module(package)
  listed = re.findall(r"^\| `(\w+)`", module.__doc__ or "", re.MULTILINE)
  assert sorted(listed) == sorted(set(listed)) == module.__all__


@of_each_package
def test_there_are_about_a_dozen(package):
  assert 10 <= len(importlib.import_module(package).__all__) <= 15


@of_each_package
def test_names_come_from_where_type_checkers_are_told(package):
  module = importlib.import_module(package)
  of_types = imported_for_types(package)
  assert of_types == module._HOMES
  assert sorted(of_types) == module.__all__
  for name, home in of_types.items():
    assert getattr(module, name).__module__ == home


@of_each_package
def test_no_name_is_that_of_a_module(package):
  # Importing the module would put it where the name was.
  module = importlib.import_module(package)
  modules = {info.name for info in pkgutil.iter_modules(module.__path__)}
  assert not modules & set(module.__all__)


@of_each_package
def test_a_star_import_brings_them_and_dir_lists_them(package):
  module = importlib.import_module(package)
  found = {}
  exec(f"from {package} import *", found)
  assert set(module.__all__) <= found.keys()
  assert set(module.__all__) <= set(dir(module))


@of_each_package
def test_other_names_are_not_there(package):
  module = importlib.import_module(package)
  with pytest.raises(AttributeError, match=f"'{package}' has no .*'nothing'"):
    _ = module.nothing
  with pytest.raises(ImportError):
    exec(f"from {package} import nothing")


@of_each_name
def test_documented_with_an_example(package, name):
  doc = getattr(importlib.import_module(package), name).__doc__ or ""
  assert doc.splitlines()[0].endswith(".")
  assert ">>> " in doc


@of_each_name
def test_documents_what_goes_in_and_what_comes_out(package, name):
  public = getattr(importlib.import_module(package), name)
  doc = inspect.getdoc(public) or ""
  if dataclasses.is_dataclass(public):
    section = doc.partition("Attributes:\n")[2]
    expected = [
      field.name
      for field in dataclasses.fields(public)
      # Those of a base class are documented there.
      if field.name in inspect.get_annotations(public)
    ]
  else:
    section = doc.partition("Args:\n")[2]
    expected = list(inspect.signature(public).parameters)
    if not inspect.isclass(public):
      assert "\nReturns:\n" in doc
  described = re.findall(r"^  ([\w, ]+):", section, re.MULTILINE)
  described = {name for names in described for name in names.split(", ")}
  assert set(expected) <= described


def test_nothing_heavy_is_imported_before_it_is_used():
  code = (
    "import sys, linear_dp, extract\n"
    "dir(linear_dp), dir(extract)\n"
    f"print([name for name in {HEAVY} if name in sys.modules])"
  )
  found = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert found.stdout == "[]\n"
