"""The house: who may import whom, and how large a room may be."""

import ast
import graphlib
import pathlib

import grimp
import pytest
from grimp import Layer

import oneshot_dp

ROOT = pathlib.Path(oneshot_dp.__file__).parent
PACKAGES = ("configs", "extract", "linear_dp", "pipeline")


def floor(*names: str, independent: bool = False) -> Layer:
  return Layer(*names, independent=independent)


# From the foundation up: nothing imports what is above it in its list.
FLOORS = {
  "oneshot_dp": (
    floor("configs"),
    floor("extract", "linear_dp", independent=True),
    floor("pipeline"),
  ),
  "oneshot_dp.extract": (
    floor("files"),
    floor("sources", "images", "storage", "cache"),
    floor("weights"),
    floor("backbones"),
    floor("job"),
  ),
  "oneshot_dp.linear_dp": (
    floor("noise", "accounting", "hosts", "rows", "data"),
    floor("private_sums", "statistics"),
    floor("heads", "evaluate"),
    floor("train"),
    floor("classifier"),
  ),
  "oneshot_dp.pipeline": (
    floor("ledger", "vector_files", "import_table"),
    floor("heads"),
    floor("report", "prediction"),
    floor("runs", "timm_form", "exports"),
    floor("audit"),
    floor("commands"),
    floor("cli"),
  ),
}
LEVELS = {"extract": 6, "linear_dp": 8, "pipeline": 7}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
  """Every import, those within functions included."""
  return grimp.build_graph(
    "oneshot_dp", exclude_type_checking_imports=True, cache_dir=None
  )


@pytest.mark.parametrize("package", FLOORS)
def test_imports_point_to_the_foundation(graph, package):
  found = graph.find_illegal_dependencies_for_layers(
    layers=FLOORS[package][::-1], containers={package}
  )
  wrong = {
    f"{route.heads} -> {route.middle} -> {route.tails}"
    for dependency in found
    for route in dependency.routes
  }
  assert wrong == set()


def test_there_is_no_circle(graph):
  circles = {
    (module, imported)
    for module in graph.modules
    for imported in graph.find_modules_directly_imported_by(module)
    if graph.chain_exists(importer=imported, imported=module)
  }
  assert circles == set()


@pytest.mark.parametrize("package", LEVELS)
def test_levels_between_rooms(graph, package):
  """A circle between rooms has no levels: graphlib.CycleError names it."""
  rooms = graph.find_children(f"oneshot_dp.{package}")
  of_room = {m: r for r in rooms for m in {r, *graph.find_descendants(r)}}
  below: dict[str, set[str]] = {r: set() for r in rooms}
  for module, own in of_room.items():
    for imported in graph.find_modules_directly_imported_by(module):
      below[own] |= {of_room.get(imported, own)} - {own}
  sorter = graphlib.TopologicalSorter(below)
  sorter.prepare()
  levels = []
  while sorter.is_active():
    levels.append(sorted(sorter.get_ready()))
    sorter.done(*levels[-1])
  assert len(levels) <= LEVELS[package], levels


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_has_at_most_twelve_files(package):
  folders = [ROOT / package, *(ROOT / package).rglob("*/")]
  files = {
    str(f): [p.name for p in f.glob("*.py") if p.name != "__init__.py"]
    for f in folders
    if f.name != "commands"  # thirteen, each one file
  }
  assert {name: n for name, n in files.items() if len(n) > 12} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_has_at_most_three_hundred_lines(package):
  lines = {
    str(path.relative_to(ROOT)): path.read_text().count("\n")
    for path in (ROOT / package).rglob("*.py")
  }
  assert {name: n for name, n in lines.items() if n > 300} == {}


def test_no_two_files_have_one_name():
  names: dict[str, list[str]] = {}
  for package in ("extract", "linear_dp", "pipeline"):
    for path in (ROOT / package).rglob("*.py"):
      # A command and what it runs are named alike: `report`, `verify`.
      if path.stem != "__init__" and path.parent.name != "commands":
        names.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
  assert {name: files for name, files in names.items() if files[1:]} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_docstring_says_what_the_thing_is_or_does(package):
  """With a verb or a noun of its own: none begins with "Of"."""
  documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  wrong = [
    f"{path.relative_to(ROOT)}: {ast.get_docstring(node)}"
    for path in (ROOT / package).rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, documented)
    and (ast.get_docstring(node) or "").startswith("Of ")
  ]
  assert wrong == []
