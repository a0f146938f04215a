"""A backbone on the local devices: one compiled function, one batch shape."""

import functools
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt8

from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.backbones.registry import load_backbone

# More images at once leave the fast memory: on a CPU a ViT-Ti/16 is 1.4 times
# slower at 64 than at 16, measured; of a v5e the compiler expects 1.2 times as
# many images/s of a ViT-B/16 at 64 as at 256.
IMAGES_PER_DEVICE = {"cpu": 16, "tpu": 64, "gpu": 256}
# The rest is for activations.
_PARAMETERS_SHARE = 0.5


class Embedder:
  """Runs a backbone on all local devices, the images sharded over them.

  The parameters are on every device, or sharded too where they would take more
  than half of a device's memory (XLA then gathers each as it is needed).

  Args:
    backbone: what to run.
    batch_size: images per call; None is `IMAGES_PER_DEVICE` for each device.
    bytes_per_device: memory of a device; None is what the device says, and
      without limit where it says nothing (a CPU).

  Attributes:
    backbone: what it runs.
    batch_size: images per call: the size asked for, rounded up to a multiple
      of the number of devices.
  """

  def __init__(
    self,
    backbone: Backbone,
    batch_size: int | None,
    bytes_per_device: float | None = None,
  ):
    devices = jax.local_devices()
    per_device = (
      IMAGES_PER_DEVICE.get(devices[0].platform, 256)
      if batch_size is None
      else -(-batch_size // len(devices))
    )
    self.backbone = backbone
    self.batch_size = per_device * len(devices)
    mesh = Mesh(np.array(devices), ("data",))
    self._rows = NamedSharding(mesh, PartitionSpec("data"))
    shardings = parameter_shardings(
      backbone.params, mesh, bytes_per_device or _memory_of(devices[0])
    )
    self._params = jax.device_put(backbone.params, shardings)
    self._apply = jax.jit(
      backbone.apply,
      in_shardings=(shardings, self._rows),
      out_shardings=self._rows,
    )

  def __call__(
    self, images: UInt8[np.ndarray, "rows h w 3"]
  ) -> Float[Array, "batch d"]:
    """Starts one batch; the result arrives asynchronously.

    Args:
      images: [rows ≤ batch_size, h, w, 3]; padded with zeros to the batch size.

    Returns:
      [batch_size, d] float32, whose first `rows` rows count.
    """
    padding = [(0, self.batch_size - len(images))] + [(0, 0)] * 3
    batch = jax.device_put(np.pad(images, padding), self._rows)
    return self._apply(self._params, batch)


def load_embedder(config: ExtractConfig) -> Embedder:
  """Loads the backbone of a job onto the local devices."""
  backbone = load_backbone(config.backbone, config.preprocess)
  return Embedder(backbone, config.batch_size)


def parameter_shardings(
  params: Any, mesh: Mesh, bytes_per_device: float
) -> Any:
  """Where each parameter goes: everywhere, or in slices if that is too much.

  Args:
    params: tree of arrays.
    mesh: the devices, one axis "data".
    bytes_per_device: memory of one.

  Returns:
    Tree of shardings. A parameter without an axis that the devices divide
    stays whole.
  """
  total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
  if total <= _PARAMETERS_SHARE * bytes_per_device:
    return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), params)
  return jax.tree.map(functools.partial(_sliced, mesh), params)


def _sliced(mesh: Mesh, leaf: np.ndarray) -> NamedSharding:
  """Along its longest axis that the devices divide."""
  axes = [a for a, size in enumerate(leaf.shape) if size % mesh.size == 0]
  axis = max(axes, key=lambda a: leaf.shape[a], default=None)
  if axis is None:
    return NamedSharding(mesh, PartitionSpec())
  return NamedSharding(mesh, PartitionSpec(*[None] * axis, "data"))


def _memory_of(device: jax.Device) -> float:
  stats = device.memory_stats() or {}
  return stats.get("bytes_limit", math.inf)
