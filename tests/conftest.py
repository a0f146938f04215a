"""What every test stands on: eight devices, checked types, real material."""

import ctypes
import dataclasses
import functools
import gc
import importlib.machinery
import inspect
import mmap
import os
import pathlib
import re
import signal
import tempfile
import typing
from typing import Any

# JAX reads these once, when it is first imported: keep them above any import
# that may lead to it.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# What XLA has compiled once is read by the other processes of this run, workers
# and commands alike, and by the next run: `make clean` makes it forget.
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ.get(
  "JAX_COMPILATION_CACHE_DIR",
  str(pathlib.Path(__file__).parents[1] / "build" / "compiled"),
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import beartype
import hypothesis
import jaxtyping
import pytest

# Until the tests are collected nothing is garbage, and what is collected never
# is: to look through it over and over took a third of the collection's time.
gc.disable()

# From here on every annotation in our packages, the shapes and dtypes of
# arrays included, is checked at each call: all but Self, whose class beartype
# cannot know while it decorates one method. `make test-fast` does without.
check = beartype.beartype(
  conf=beartype.BeartypeConf(
    hint_overrides=beartype.FrozenDict({typing.Self: typing.Any}),
    violation_type=jaxtyping.TypeCheckError,
  )
)

scope = jaxtyping.jaxtyped("context")  # sizes that have one name are equal
nested = set()  # functions in others: to check each anew takes long


def checked(of=None, *, typechecker=None, whole=jaxtyping.jaxtyped):
  """As jaxtyping checks, but arguments once, not twice, nor bound by name."""
  if of is None:
    return functools.partial(checked, typechecker=typechecker)
  if inspect.isclass(of):
    if dataclasses.is_dataclass(of) and "__init__" in vars(of):
      of.__init__ = checked(of.__init__)
    return of
  if hasattr(of, "__wrapped__"):  # a dataclass's own
    return of
  if "<locals>" in of.__qualname__:
    if of.__code__ in nested:
      return of
    nested.add(of.__code__)
  hints = repr(of.__annotations__)
  later = re.search(r"(: |\[)'|{", hints[1:])  # a name, or an argument's value
  if later or inspect.isgeneratorfunction(of):
    return whole(of, typechecker=check)
  of_types = check(of)
  if "jaxtyping" not in hints:
    return of_types

  @functools.wraps(of)
  def of_shapes(*args, **kwargs):
    with scope:
      return of_types(*args, **kwargs)

  return of_shapes


if os.environ.get("ONESHOT_DP_CHECK_TYPES", "1") == "1":
  vars(jaxtyping)["jaxtyped"] = checked  # is what the hook puts
  hooks: Any = jaxtyping.install_import_hook(
    ["oneshot_dp"], "beartype.beartype"
  )
  loader = type(hooks.hook.find_spec("oneshot_dp").loader)
  # From its source, where checks are put. As jaxtyping does it, the modules
  # that it imports, NumPy too, would be compiled anew as well.
  loader.exec_module = importlib.machinery.SourceFileLoader.exec_module
  loader.get_code = lambda self, _: self.source_to_code(
    self.get_data(self.path), self.path
  )


# No test cuts the power, and to wait for a disk took a third of the time: what
# is flushed, and when, is seen by the calls. Processes of their own do flush.
os.fsync = lambda fd: None

# A shell lets what it starts in the background ignore Ctrl-C, and so would the
# commands that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, however slow the machine is at the moment:
# whether a change lands is not left to chance. To look for new ones:
# pytest --hypothesis-profile=default
hypothesis.settings.register_profile(
  "repeatable", derandomize=True, deadline=None
)
hypothesis.settings.load_profile("repeatable")

# A script that is run by hand, where the libraries that it compares with are.
collect_ignore = [
  "benchmarks/forward_pass.py",
  "extract/backbones/write_golden.py",
]


# They mostly wait for processes of their own, or take long: one test process
# begins with them. (To each, xdist gives what follows, in order.)
FIRST = re.compile(
  r"hosts_test|TestHosts|TestProcess|\[processes|tests/faults/|wheel_test"
)


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: not FIRST.search(item.nodeid))


def pytest_collection_finish():
  gc.freeze()
  # Every 700 objects, as Python does it, it takes 5 % of a run.
  gc.set_threshold(10_000)
  gc.enable()


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
  """Forgets compiled programs where they fill a worker: it took 3.7 GB."""
  yield
  statm = pathlib.Path("/proc/self/statm")
  if not statm.exists():
    return
  if int(statm.read_text().split()[1]) * mmap.PAGESIZE > 3 * 2**29:
    import jax

    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True, scope="session")
def temporary(tmp_path_factory):
  """What libraries leave in the temporary folder goes with what tests leave."""
  tempfile.tempdir = os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("left"))


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory):
  """Where weights are is noted in a folder of the tests' own."""
  os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
  """The folder of real images, features and weights; skips where absent."""
  folder = pathlib.Path(__file__).parents[2] / "shared" / "data"
  if not folder.is_dir():
    pytest.skip(f"needs the real material of {folder}, which is not here")
  return folder
