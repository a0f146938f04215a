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


def room(*names: str, independent: bool = False) -> Layer:
  return Layer(*names, independent=independent)


# From the foundation up: no layer imports one that is below it in its list.
LAYERS = {
  "oneshot_dp": (
    room("configs"),
    room("extract", "linear_dp", independent=True),
    room("pipeline"),
  ),
  "oneshot_dp.extract": (
    room("sources", "images", "storage", "cache"),
    room("weights", "duplicates"),
    room("backbones"),
    room("job"),
  ),
  "oneshot_dp.linear_dp": (
    room("rows", "noise"),
    room("accounting", "statistics"),
    room("trainer"),
    room("one_step"),
    room("heads"),
    room("train_arrays"),
  ),
  "oneshot_dp.pipeline": (
    room("shell", "ledger"),
    room("saved_head"),
    room("training"),
    room("runs", "audit", "importing"),
    room("paper", "report", "serving"),
    room("commands"),
    room("cli"),
  ),
}
LEVELS = {"extract": 5, "linear_dp": 7, "pipeline": 8}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
  """Every import, those within functions included."""
  return grimp.build_graph(
    "oneshot_dp", exclude_type_checking_imports=True, cache_dir=None
  )


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_to_the_foundation(graph, package):
  found = graph.find_illegal_dependencies_for_layers(
    layers=LAYERS[package][::-1], containers={package}
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
  files = {str(f): len(list(f.glob("*.py"))) for f in folders}
  assert {name: n for name, n in files.items() if n > 12} == {}


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
