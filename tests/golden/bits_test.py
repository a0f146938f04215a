"""The bits of every head that seeded noise makes stay what they were."""

import importlib.metadata
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from tests.golden import seeded_heads

FOLDER = pathlib.Path(__file__).parent
# Where numpy, scipy, jaxlib and the processor are not those of the golden file,
# LAPACK may differ in the last bit, and a row of integers by one: far below the
# noise, which is the same.
TOLERANCE = 1e-3

# A driver of NVIDIA's and a JAX that uses it; JAX itself may not look here,
# where it is to have CPUs alone.
_JAX_PLUGINS = importlib.metadata.entry_points(group="jax_plugins")
HAS_GPU = shutil.which("nvidia-smi") is not None and any(
  "cuda" in plugin.name for plugin in _JAX_PLUGINS
)

golden = json.loads((FOLDER / "seeded_heads.json").read_text())


@pytest.fixture(scope="module")
def one_device_process():
  """Trains all heads in a process that has one device, beside this one."""
  process = seeded_heads.start_training("cpu")
  with process:  # which closes the pipe, also where nobody reads it
    yield process
    process.kill()


@pytest.fixture(scope="module")
def heads_of_eight_devices(one_device_process):
  """Trained here, while the other process is at work."""
  assert jax.device_count() == 8
  return seeded_heads.train_all()


@pytest.fixture(scope="module")
def heads_of_one_device(one_device_process, heads_of_eight_devices):
  """What the other process printed."""
  printed, _ = one_device_process.communicate(timeout=120)
  assert one_device_process.returncode == 0
  return json.loads(printed)


@pytest.fixture(scope="module")
def heads_of_gpu():
  """Trained by a process that has a GPU and no other device."""
  with seeded_heads.start_training("cuda") as process:
    printed, _ = process.communicate()
  assert process.returncode == 0
  return json.loads(printed)


@pytest.mark.slow
@pytest.mark.parametrize("case", seeded_heads.CASES)
def test_seeded_head_today_has_the_golden_bits(case, heads_of_eight_devices):
  is_same_platform = golden["fingerprint"] == seeded_heads.fingerprint()
  for epsilon, expected in golden["heads"][case].items():
    head = heads_of_eight_devices[case][epsilon]
    assert head["dtypes"] == expected["dtypes"]
    assert head["unit_norm"] == expected["unit_norm"]
    if is_same_platform:
      assert head["kernel_sha256"] == expected["kernel_sha256"]
      assert head["bias_sha256"] == expected["bias_sha256"]
    for name in ("kernel", "bias"):
      largest = np.abs(expected[name]).max()
      np.testing.assert_allclose(
        head[name], expected[name], rtol=0, atol=TOLERANCE * largest + 1e-7
      )


@pytest.mark.slow
@pytest.mark.parametrize("case", seeded_heads.CASES)
def test_seeded_head_on_one_device_has_the_bits_of_eight(
  case, heads_of_one_device, heads_of_eight_devices
):
  assert heads_of_one_device[case] == heads_of_eight_devices[case]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU and JAX for CUDA")
@pytest.mark.parametrize("case", seeded_heads.CASES)
def test_seeded_head_on_a_gpu_has_the_bits_of_the_cpu(
  case, heads_of_gpu, heads_of_eight_devices
):
  assert heads_of_gpu[case] == heads_of_eight_devices[case]


@pytest.mark.slow
@pytest.mark.parametrize("case", seeded_heads.CASES)
def test_receipt_of_a_seeded_head_says_what_it_said(
  case, heads_of_eight_devices
):
  for epsilon, expected in golden["heads"][case].items():
    assert (
      heads_of_eight_devices[case][epsilon]["receipt"] == (expected["receipt"])
    )


def test_golden_heads_cover_every_case_and_whitening():
  assert set(golden["heads"]) == set(seeded_heads.CASES)
  for case, whitens in (("auto", True), ("auto_few_rows", False)):
    releases = golden["heads"][case]["8.0"]["receipt"]["stated"]["releases"]
    names = {release["name"] for release, _ in releases}
    assert ("second moment" in names) == whitens
