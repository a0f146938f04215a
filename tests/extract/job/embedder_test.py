import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from oneshot_dp.configs.extract_config import BackboneConfig, PreprocessConfig
from oneshot_dp.extract.backbones.registry import load_backbone
from oneshot_dp.extract.job.embedder import Embedder, parameter_shardings
from tests.extract.embedders import attention, first_pixel
from tests.extract.image_jobs import pixels

pytestmark = pytest.mark.usefixtures("quick_compilation")

DEVICES = 8


@pytest.mark.parametrize(
  ("asked", "used"), [(1, 8), (8, 8), (9, 16), (64, 64), (None, 128)]
)
def test_batches_divide_among_the_devices(asked, used):
  assert jax.local_device_count() == DEVICES
  assert Embedder(first_pixel(), asked).batch_size == used


def test_rows_are_sharded_over_all_devices():
  result = Embedder(first_pixel(), 8)(np.zeros((5, 4, 4, 3), np.uint8))
  assert {s.data.shape for s in result.addressable_shards} == {(1, 2)}
  assert len({s.device for s in result.addressable_shards}) == DEVICES


@pytest.mark.parametrize("make", ["random_patches", "attention"])
@pytest.mark.parametrize("memory", [None, 1.0])
def test_eight_devices_equal_one(make, memory):
  """Whether they each have all the parameters, or too little memory for it."""
  backbone = (
    attention()
    if make == "attention"
    else load_backbone(
      BackboneConfig(name="random_patches"), PreprocessConfig(image_size=8)
    )
  )
  images = pixels(16)
  alone = jax.jit(backbone.apply)(backbone.params, images)
  assert len(alone.devices()) == 1
  many = Embedder(backbone, 16, memory)(images)
  np.testing.assert_allclose(many, alone, rtol=0, atol=2e-6)


PARAMS = {
  "kernel": np.zeros((4, 4, 3, 64), np.float32),
  "dense": np.zeros((64, 24), np.float32),
  "bias": np.zeros(64, np.float32),
  "position": np.zeros((1, 5, 3), np.float32),
}
BYTES = sum(leaf.nbytes for leaf in PARAMS.values())


@pytest.fixture
def mesh() -> Mesh:
  return Mesh(np.array(jax.local_devices()), ("data",))


def shard_shapes(mesh: Mesh, bytes_per_device: float) -> dict[str, tuple]:
  shardings = parameter_shardings(PARAMS, mesh, bytes_per_device)
  placed = jax.device_put(PARAMS, shardings)
  return {k: v.addressable_shards[0].data.shape for k, v in placed.items()}


def test_parameters_that_fit_are_on_every_device(mesh):
  shapes = {name: leaf.shape for name, leaf in PARAMS.items()}
  assert shard_shapes(mesh, 2.0 * BYTES) == shapes


def test_parameters_that_do_not_fit_are_sliced(mesh):
  assert shard_shapes(mesh, 2.0 * BYTES - 1) == {
    "kernel": (4, 4, 3, 8),
    "dense": (8, 24),
    "bias": (8,),
    "position": (1, 5, 3),
  }
