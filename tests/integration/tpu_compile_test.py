"""Both stages compiled ahead of time for real TPUs; none is needed.

With `-s` the predictions are printed beside the paper's; what they are worth is
said in tests/benchmarks/tpu_estimate.py, whose command prints more of them.
"""

import pytest

from oneshot_dp.linear_dp.one_step import device_sums as class_sums
from tests.benchmarks import tpu_estimate
from tests.benchmarks.tpu_estimate import CHIPS, PAPER_TABLE_8

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    tpu_estimate.unavailable() is not None,
    reason=str(tpu_estimate.unavailable()),
  ),
]


def check_memory_and_types(program):
  assert program.memory < program.chip.memory
  # Before compilation: the compiler makes pairs of float32 of float64.
  assert "f64" not in program.stablehlo
  assert "f64" not in program.hlo


# (A network takes the compiler up to a minute; the command does them all. Of
# the last block "cls" would leave the other tokens out.)
def test_a_block_of_an_extraction():
  name, chip = "vit_b16", "v5e"
  program = tpu_estimate.extraction(
    name, CHIPS[chip], depth=1, embedding="mean"
  )
  print(tpu_estimate.extraction_line(name, chip, program))
  check_memory_and_types(program)
  # A compiler's estimate is no measurement, but a tenfold loss would be seen.
  predicted = tpu_estimate.BATCH / program.seconds
  assert predicted > 12 / 2 * PAPER_TABLE_8[name]


@pytest.mark.parametrize(
  ("chip", "dtype", "bias", "classes"),
  [
    ("v5e", "float16", False, 21_841),  # those of ImageNet-21k
    ("v4", "bfloat16", True, 1000),
    ("v5e", "float32", True, 1000),
  ],
)
def test_exact_sum(chip, dtype, bias, classes):
  program = tpu_estimate.exact_sum(
    CHIPS[chip], bias=bias, dtype=dtype, classes=classes
  )
  print(tpu_estimate.sum_line(f"{chip}, {dtype}, bias {bias}", program, 0))
  check_memory_and_types(program)
  check_scatter(program, 100_000)


def check_scatter(program, cycles):
  """One scatter, no program per row, no copy of the sums around it."""
  assert program.hlo.count(" while(") == 0
  assert program.hlo.count(" scatter(") == 1
  assert program.cycles < cycles
  assert program.temporaries < 2**20


@pytest.mark.parametrize(
  ("chip", "what"),
  [("v5e", what) for what in tpu_estimate.AUTO]
  + [("v4", what) for what in tpu_estimate.AUTO if "units" not in what],
)
def test_auto(monkeypatch, chip, what):
  """All that heads of several steps run on a device, for small chunks."""
  for size, smaller in (
    ("ROWS_PER_DEVICE", 128),
    ("WIDTH", 256),
    ("CLASSES", 99),
  ):
    monkeypatch.setattr(tpu_estimate, size, smaller)  # compiles faster
  program = tpu_estimate.auto(what, CHIPS[chip])
  print(tpu_estimate.auto_line(what, chip, program))
  check_memory_and_types(program)


def test_the_form_of_a_cpu_is_another_program():
  """What the tests above are worth."""
  program = tpu_estimate.exact_sum(CHIPS["v5e"], form=class_sums._add_in_tiles)
  assert "f64" in program.stablehlo
  assert " while(" in program.hlo
