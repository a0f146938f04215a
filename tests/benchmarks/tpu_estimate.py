"""What the TPU compiler expects of extraction, exact sums and `auto`; no TPU.

    python tests/benchmarks/tpu_estimate.py [--networks vit_b16 vit_h14]

Compiles ahead of time with libtpu's compile-only client, for one v5e and one v4
host, and prints FLOPs, bytes, memory and predicted speeds. Minutes.

How far to believe it. The `optimal_seconds` of JAX's cost_analysis() are of no
use: an instruction without a cost counts as minus one second, a loop as one
turn, and the rest is bytes by bandwidth though most of them stay in the vector
memory. The `estimated_cycles` of the compiled instructions are what the
compiler chose their tiles by, and their sum, at the chip's clock, is the
prediction here; it knows no overlap between instructions, no host and no
queues. A scatter has no cycles either: the instruction bundles of its machine
code are counted, with the empty ones that wait for others, one cycle each.
"""

import argparse
import collections
import dataclasses
import functools
import importlib.util
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

# Nothing here may look for a TPU, ask a metadata server for one, or take the
# lock that keeps two processes from one TPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ["TPU_ACCELERATOR_TYPE"] = "v5litepod-4"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
# `make` keeps it out of the environment's own packages, for there JAX would
# look for a TPU, loudly, in every process.
_LIBTPU = Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"
if _LIBTPU.is_file():
  os.environ["TPU_LIBRARY_PATH"] = str(_LIBTPU)

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from oneshot_dp.extract.backbones.backbone import apply_function
from oneshot_dp.extract.backbones.registry import find_architecture
from oneshot_dp.extract.job.embedder import IMAGES_PER_DEVICE
from oneshot_dp.linear_dp.one_step import device_sums as class_sums
from oneshot_dp.linear_dp.rows.unit_norm_rows import ROWS_PER_DEVICE, Chunk
from oneshot_dp.linear_dp.statistics import (
  class_moments,
  gains,
  gradient_sum,
  step_rows,
)
from oneshot_dp.linear_dp.statistics.row_gradient import SOFTMAX
from oneshot_dp.linear_dp.statistics.step_rows import StepChunk

GIB = 2**30
BATCH = IMAGES_PER_DEVICE["tpu"]
"""Images per chip."""
IMAGE_SIZE = 256
ROWS = class_sums._ROWS_PER_DEVICE
CLASSES, WIDTH = 1000, 1280


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """A host of TPU chips, and the published limits of one chip, per second.

  The compile-only client takes `topology`, and `options` make a chip one
  device; `clock` is what 128 x 128 matrix units need for bfloat16 `flops`.
  """

  topology: str
  options: dict[str, str]
  flops: float
  bandwidth: float
  memory: int
  clock: float


CHIPS = {
  "v5e": Chip(
    topology="v5e:2x2",
    options={},
    flops=197e12,
    bandwidth=819e9,
    memory=16 * GIB,
    clock=1.5e9,
  ),
  "v4": Chip(
    topology="v4:2x2x1",
    # Otherwise each of a chip's two cores is a device with half the memory.
    options={"chip_config_name": "megacore"},
    flops=275e12,
    bandwidth=1228e9,
    memory=32 * GIB,
    clock=1.05e9,
  ),
}
PAPER_TABLE_8 = {"vit_b16": 900, "vit_h14": 100}
"""Mehta et al. (TMLR 2023): images/s/core, "last layer"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """A program as it was handed to the compiler and as it came back.

  The compiler replaces float64 by pairs of float32. Numbers are of one device;
  `memory` has arguments, results, temporaries and code.
  """

  chip: Chip
  stablehlo: str
  hlo: str
  flops: float
  bytes_accessed: float
  memory: int
  temporaries: int

  @functools.cached_property
  def cycles(self) -> int:
    """Sum over the instructions that have an estimate."""
    found = re.findall(r'"estimated_cycles":"(\d+)"', self.hlo)
    return sum(int(cycles) for cycles in found)

  @property
  def seconds(self) -> float:
    """Predicted, of what has an estimate."""
    return self.cycles / self.chip.clock

  def cycles_by_operation(self) -> collections.Counter[str]:
    """Where the cycles go, blocks of a network taken together."""
    cycles = collections.Counter()
    for line in self.hlo.splitlines():
      if found := re.search(r'"estimated_cycles":"(\d+)"', line):
        name = re.search(r'op_name="([^"]*)"', line)
        name = re.sub(r"_\d+", "", name[1].split("/", 1)[-1] if name else "?")
        cycles[name] += int(found[1])
    return cycles


def unavailable() -> str | None:
  """Why nothing can be compiled here, or None if it can."""
  if sys.platform != "linux" or platform.machine() != "x86_64":
    return "libtpu is built for Linux on x86-64 only"
  if not _LIBTPU.is_file() and importlib.util.find_spec("libtpu") is None:
    return "libtpu is not installed: `make test` does it"
  return None


def mesh_of(chip: Chip) -> Mesh:
  """The chips of one host."""
  described = topologies.get_topology_desc(
    chip.topology, platform="tpu", **chip.options
  )
  return Mesh(np.array(described.devices), ("data",))


def extraction(name: str, chip: Chip, **changes: Any) -> Program:
  """The forward pass in bfloat16, images sharded, parameters replicated."""
  architecture = find_architecture(name)
  module = architecture.build(architecture.embeddings[0], "bfloat16")
  module = module.clone(**changes)
  image = (IMAGE_SIZE, IMAGE_SIZE, 3)
  shapes = jax.eval_shape(
    module.init,
    jax.random.key(0),
    jax.ShapeDtypeStruct((1, *image), jnp.float32),
  )["params"]
  mesh = mesh_of(chip)
  replicated = NamedSharding(mesh, PartitionSpec())
  rows = NamedSharding(mesh, PartitionSpec("data"))

  def placed(path: tuple, leaf: Any) -> jax.ShapeDtypeStruct:
    # As oneshot_dp.extract.backbones.registry.stored_params has them.
    kernel = path[-1].key == "kernel"
    dtype = jnp.bfloat16 if kernel else leaf.dtype
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=replicated)

  apply = jax.jit(
    apply_function(module, architecture.reference),
    in_shardings=(replicated, rows),
    out_shardings=rows,
  )
  batch = (BATCH * mesh.size, *image)
  return _compiled(
    apply.lower(
      jax.tree_util.tree_map_with_path(placed, shapes),
      jax.ShapeDtypeStruct(batch, jnp.uint8, sharding=rows),
    ),
    chip,
  )


def exact_sum(
  chip: Chip,
  *,
  form: Any = class_sums._add_at_once,
  dtype: str = "float16",
  classes: int = CLASSES,
  bias: bool = False,
) -> Program:
  """One chunk of the exact sum at ImageNet's size."""
  mesh = mesh_of(chip)
  sharding = NamedSharding(mesh, PartitionSpec("data"))
  of_a_chip = (
    ((classes, WIDTH + bias), jnp.int32),
    ((ROWS, WIDTH), jnp.dtype(dtype)),
    ((ROWS,), jnp.float32),
    ((ROWS,), jnp.int32),
  )
  adder: Any = class_sums._chunk_adder(mesh, bias, form)
  with jax.enable_x64(form is class_sums._add_in_tiles):
    lowered = adder.lower(
      *(
        jax.ShapeDtypeStruct(
          (mesh.size * shape[0], *shape[1:]), dtype, sharding=sharding
        )
        for shape, dtype in of_a_chip
      )
    )
    return _compiled(lowered, chip)


OF_UNITS = " of units"
AUTO = (
  *("step", "map", "moments", "gains"),
  *(f"step{OF_UNITS}", f"moments{OF_UNITS}", f"gains{OF_UNITS}"),
)
"""What `auto` compiles; the gains are those over a public start."""
AUTO_ROWS = 1_281_167


def auto(what: str, chip: Chip) -> Program:
  """One chunk of a part of `auto`, at ImageNet's size, without float64."""
  mesh, wide = mesh_of(chip), jnp.dtype(jnp.int64)
  rows, chips = ROWS_PER_DEVICE * mesh.size, mesh.size

  def put(dtype: str, *shape: int, spec: PartitionSpec) -> Any:
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

  same = functools.partial(put, spec=PartitionSpec())
  data = functools.partial(put, spec=PartitionSpec("data"))
  stored = (data("float16", rows, WIDTH), data("float32", rows))
  label = data("int32", rows)
  weight = data("int32", rows) if what.endswith(OF_UNITS) else None
  mapped = StepChunk(data("int16", rows, WIDTH), stored[1], label, weight)
  with jax.enable_x64(True):
    if what.startswith("step"):
      of_step: Any = gradient_sum._adder(mesh, SOFTMAX, wide)
      lowered = of_step.lower(
        data("int64", chips, WIDTH, CLASSES),
        same("int32", WIDTH, CLASSES),
        same("float32"),
        same("float32"),
        None,
        mapped,
      )
    elif what.startswith("gains"):
      of_gains: Any = gains._adder(mesh, wide)
      lowered = of_gains.lower(
        data("int64", chips, 2), same("int32", 3, WIDTH, CLASSES), mapped
      )
    elif what == "map":
      vector = same("int32", WIDTH)
      mapper: Any = step_rows._mapper(mesh, wide)
      lowered = mapper.lower(
        same("int32", WIDTH, WIDTH), vector, vector, *stored
      )
    else:
      totals = ((WIDTH, WIDTH), (CLASSES, WIDTH), (CLASSES,))
      of_moments: Any = class_moments._adder(mesh, wide)
      lowered = of_moments.lower(
        tuple(data("int64", chips, *shape) for shape in totals),
        Chunk(*stored, stored[1], label, weight),
      )
    return _compiled(lowered, chip)


def auto_line(what: str, name: str, program: Program) -> str:
  """One line of the table."""
  chips = mesh_of(program.chip).size
  chunks = -(-AUTO_ROWS // (ROWS_PER_DEVICE * chips))
  return (
    f"auto, {what}, {AUTO_ROWS:,} x {WIDTH}, K = {CLASSES}, {chips} {name}:"
    f" {1e3 * chunks * program.seconds:.0f} ms in {chunks} chunks of"
    f" {program.cycles:,} cycles; {program.memory / 2**20:.0f} MiB"
  )


def scatter_bundles(dump: Path) -> float:
  """Instruction bundles per row of the last scatter compiled.

  `dump` is the compiler's --xla_jf_dump_to. The rows of a pass are unrolled:
  each adds its `WIDTH` in vectors of 128.
  """
  files = sorted(dump.glob("*-scatter*-packed-bundles-post-ra.txt"))
  files = [f for f in files if "schedule-analysis" not in f.name]
  code = files[-1].read_text()
  bundles = len(re.findall(r"^ *(?:0x[0-9a-f]+|0) +\w* *:", code, re.M))
  rows = code.count("vadd.s32") / -(-WIDTH // 128)
  return bundles / rows


def _compiled(lowered: Any, chip: Chip) -> Program:
  compiled = lowered.compile()
  cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
  return Program(
    chip=chip,
    stablehlo=lowered.as_text(),
    hlo=compiled.as_text(),
    flops=cost["flops"],
    bytes_accessed=cost["bytes accessed"],
    memory=memory.argument_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    + memory.generated_code_size_in_bytes,
    temporaries=memory.temp_size_in_bytes,
  )


def extraction_line(name: str, chip_name: str, program: Program) -> str:
  """One line of the table."""
  chip = program.chip
  return (
    f"{name} at {IMAGE_SIZE} px, {BATCH} images per {chip_name}:"
    f" {program.flops / BATCH / 1e9:.1f} GFLOP per image,"
    f" {program.bytes_accessed / 1e9:.1f} GB accessed,"
    f" {program.memory / GIB:.2f} of {chip.memory // GIB} GiB;"
    f" predicted {BATCH / program.seconds:.0f} images/s/chip,"
    f" at peak FLOPs {BATCH * chip.flops / program.flops:.0f}"
    f" (paper's Table 8: {PAPER_TABLE_8[name]} per core)"
  )


def sum_line(what: str, program: Program, cycles: float) -> str:
  """One line of the table; `cycles` are for what has no estimate."""
  total = program.cycles + cycles
  seconds = total / program.chip.clock
  scatter = (
    f"+ {cycles:,.0f} of the scatter's code" if cycles else "and a scatter"
  )
  return (
    f"exact sum, {what}: {program.cycles:,} cycles estimated {scatter} for"
    f" {ROWS} rows: {1e6 * seconds:.0f} µs,"
    f" {1e9 * seconds / ROWS:.0f} ns a row; {program.memory / 2**20:.1f} MiB"
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--networks", nargs="*", default=sorted(PAPER_TABLE_8))
  args = parser.parse_args()
  if reason := unavailable():
    sys.exit(reason)
  with tempfile.TemporaryDirectory() as dump:
    # libtpu reads it once, when it is loaded.
    os.environ["LIBTPU_INIT_ARGS"] = (
      f"--xla_jf_dump_to={dump} --xla_jf_dump_llo_text=true"
      " --xla_jf_dump_llo_pass_label_regex=packed-bundles-post-ra"
    )
    for name, chip in CHIPS.items():
      for dtype in ("float16", "bfloat16", "float32"):
        program = exact_sum(chip, dtype=dtype)
        cycles = ROWS * scatter_bundles(Path(dump))
        print(sum_line(f"{name}, {dtype}, scatter", program, cycles))
      program = exact_sum(chip, bias=True)
      cycles = ROWS * scatter_bundles(Path(dump))
      print(sum_line(f"{name}, float16, bias, scatter", program, cycles))
    for name, chip in CHIPS.items():
      for what in AUTO:
        print(auto_line(what, name, auto(what, chip)), flush=True)
    for network in args.networks:
      for name, chip in CHIPS.items():
        program = extraction(network, chip)
        print(extraction_line(network, name, program), flush=True)
        for part, cycles in program.cycles_by_operation().most_common(8):
          print(f"  {cycles / program.cycles:4.0%} {part}")


if __name__ == "__main__":
  main()
