"""Class sums compiled ahead of time for real TPUs; none is needed.

libtpu's compile-only client says what the programs are, and how much memory
they take. The instructions' own `estimated_cycles` have none for a scatter.
"""

import functools
import importlib.util
import os
import pathlib
import platform
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from oneshot_dp.linear_dp import sum_kernels
from oneshot_dp.linear_dp.quantize import integer_rows
from oneshot_dp.linear_dp.rows import Chunk

# Nothing here may look for a TPU, ask a metadata server for one, or take the
# lock that keeps two processes from one TPU.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ["TPU_ACCELERATOR_TYPE"] = "v5litepod-4"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
# `make` keeps it out of the environment's own packages, for there JAX would
# look for a TPU, loudly, in every process.
LIBTPU = pathlib.Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"
if LIBTPU.is_file():
  os.environ["TPU_LIBRARY_PATH"] = str(LIBTPU)

HERE = sys.platform == "linux" and platform.machine() == "x86_64"
FOUND = LIBTPU.is_file() or importlib.util.find_spec("libtpu") is not None
pytestmark = [
  pytest.mark.long,
  pytest.mark.skipif(not (HERE and FOUND), reason="no libtpu here"),
]

WIDTH = 1280
ROWS = 1024
# One device a chip: 16 and 32 GiB.
# A type, no part of an address: tensor<4xf64> in one text, f64[4] in the other.
F64 = re.compile(r"\bf64\[|[x<]f64>")
CHIPS = {
  "v5e": ("v5e:2x2", {}, 2**34),
  "v4": ("v4:2x2x1", {"chip_config_name": "megacore"}, 2**35),
}


@functools.cache
def mesh_of(chip):
  topology, options, _ = CHIPS[chip]
  described = topologies.get_topology_desc(topology, platform="tpu", **options)
  return Mesh(np.array(described.devices), ("data",))


def of(chip, dtype, *shape):
  sharding = NamedSharding(mesh_of(chip), PartitionSpec("data"))
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def compiled(chip, lowered):
  """What the compiler is given and gives back, and that it fits the chip."""
  made = lowered.compile()
  memory = made.memory_analysis()
  taken = (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    + memory.generated_code_size_in_bytes
  )
  assert taken < CHIPS[chip][2]
  return lowered.as_text(), made.as_text(), memory.temp_size_in_bytes


def chunk_of(chip):
  rows = ROWS * mesh_of(chip).size
  number: Any = of(chip, "int32", rows)
  row: Any = of(chip, "int16", rows, WIDTH)
  return Chunk(row, number, number).arrays


@pytest.mark.parametrize(
  ("chip", "classes"), [("v5e", 1000), ("v5e", 21_843), ("v4", 1000)]
)
def test_class_sums_are_one_scatter_of_int32(chip, classes):
  """No float64, no program per row, no copy of the sums around it."""
  mesh = mesh_of(chip)
  sums = of(chip, "int32", mesh.size, classes, WIDTH)
  with jax.enable_x64(False):
    scatter: Any = sum_kernels._scatter(mesh, False)
    lowered = scatter.lower(sums, chunk_of(chip), ())
  given, made, temporaries = compiled(chip, lowered)
  assert not F64.search(given + made)
  assert "s64" not in made
  assert made.count(" while(") == 0
  assert made.count(" scatter(") == 1
  assert temporaries < 2**24


@pytest.mark.parametrize(
  ("chip", "dtype"),
  [("v5e", "float16"), ("v5e", "bfloat16"), ("v4", "float32")],
)
def test_rows_become_integers_without_float64(chip, dtype):
  rows = ROWS * mesh_of(chip).size
  stored = of(chip, dtype, rows, WIDTH), of(chip, "float32", rows)
  with jax.enable_x64(False):
    given, made, temporaries = compiled(chip, integer_rows.lower(*stored, 1))
  assert not F64.search(given + made)
  assert temporaries < 2**26
