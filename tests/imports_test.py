"""The house: who may import whom, and how large a room may be."""

import collections
import graphlib
import pathlib
import re

import grimp
import pytest
from grimp import Layer

import oneshot_dp

ROOT = pathlib.Path(oneshot_dp.__file__).parent
PACKAGES = ("configs", "extract", "linear_dp", "pipeline")


# From the foundation up: nothing imports what is above it in its list.
FLOORS = {
  "oneshot_dp": ("configs", {"extract", "linear_dp"}, "pipeline"),
  "oneshot_dp.extract": (
    Layer("files", "hub", independent=False),
    Layer("sources", "images", "storage", "cache", independent=False),
    Layer("weights", "known_weights", independent=False),
    "backbones",
    "job",
  ),
  "oneshot_dp.extract.sources": (
    Layer(
      "limits",
      "listed_files",
      "location",
      "file_format",
      "tar_members",
      independent=False,
    ),
    "annotations",
    {"npz", "tar", "parquet"},
    "formats",
    "source",
    Layer("source_of_files", "layout", "folder", "tfds", independent=False),
    "open_source",
    "describe",
  ),
  "oneshot_dp.linear_dp": (
    Layer("noise", "accounting", "distributed", independent=False),
    Layer("dataset", "quantize", "privacy_units", independent=False),
    "dataset_from_arrays",
    Layer("rows", "statistics", independent=False),
    Layer("sum_kernels", "private_sums", independent=False),
    "heads",
    "train",
    "private_head",
    Layer("api", "evaluate", independent=False),
    "classifier",
  ),
  "oneshot_dp.pipeline": (
    "requests",
    Layer(
      "ledger",
      "vector_files",
      "parquet_vectors",
      "import_columns",
      "import_files",
      "import_table",
      independent=False,
    ),
    "heads",
    Layer("report", "prediction", independent=False),
    Layer("runs", "timm_form", "exports", independent=False),
    "audit",
    "commands",
    "cli",
  ),
}
# Rooms where each new network, head or command is a file of its own.
GROWING_ROOMS = ("backbones", "heads", "commands")
LEVELS = {"extract": 6, "linear_dp": 10, "pipeline": 7}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
  """Every import, also within functions and for type checkers alone.

  But for those of the import package itself, whose public names are links: it
  imports their modules only when a name is used.
  """
  graph = grimp.build_graph("oneshot_dp", cache_dir=None)
  for imported in graph.find_modules_directly_imported_by("oneshot_dp"):
    graph.remove_import(importer="oneshot_dp", imported=imported)
  return graph


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


def test_files_are_few_short_and_named_apart():
  """Of 500 lines, at most 16 in a room; a name is one file's."""
  rooms = collections.Counter()
  names = collections.Counter()
  for package in PACKAGES:
    for path in (ROOT / package).rglob("*.py"):
      assert path.read_text().count("\n") <= 500, path
      # A command and what it runs are named alike: `report`, `verify`.
      if path.stem != "__init__" and path.parent.name != "commands":
        rooms[path.parent] += 1
        names[path.stem] += 1
  crowded = {}
  for room, number in rooms.items():
    if number > (32 if room.name in GROWING_ROOMS else 16):
      crowded[room] = number
  assert crowded == {}
  assert {name: n for name, n in names.items() if n > 1} == {}


# A docstring is at the top of a file, or follows the colon of a definition.
EMPTY_BEGINNING = re.compile(r'(?:\A|:\n\s*)r?"""Of ')


def test_a_docstring_says_what_the_thing_is_or_does():
  """With a verb or a noun of its own: none begins with "Of"."""
  for package in PACKAGES:
    for path in (ROOT / package).rglob("*.py"):
      assert not EMPTY_BEGINNING.search(path.read_text()), path
