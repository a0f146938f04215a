"""A backbone on the local devices: one compiled function, one batch shape."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt8

from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.backbones.registry import load_backbone
from oneshot_dp.extract.cache.identity import BackboneIdentity

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

  Attributes:
    backbone: what it runs.
    batch_size: images per call: the size asked for (`IMAGES_PER_DEVICE` for
      each device where none is), rounded up to a multiple of the devices.
    computed_on: what decides how embeddings are rounded, beside the backbone.
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
    self.computed_on = {
      "device": devices[0].device_kind,
      "num_devices": len(devices),
      "batch_size": self.batch_size,
    }
    mesh = Mesh(np.array(devices), ("data",))
    self._rows = NamedSharding(mesh, PartitionSpec("data"))
    if bytes_per_device is None:  # A CPU says nothing.
      stats = devices[0].memory_stats() or {}
      bytes_per_device = stats.get("bytes_limit", math.inf)
    shardings = parameter_shardings(backbone.params, mesh, bytes_per_device)
    self._params = jax.device_put(backbone.params, shardings)
    self._apply = jax.jit(
      backbone.apply,
      in_shardings=(shardings, self._rows),
      out_shardings=self._rows,
    )

  def __call__(
    self, images: UInt8[np.ndarray, "rows h w 3"]
  ) -> Float[Array, "batch d"]:
    """Starts one batch of up to `batch_size`; the result arrives later.

    Only the first rows of it count: the rest is of padding.
    """
    padding = [(0, self.batch_size - len(images))] + [(0, 0)] * 3
    batch = jax.device_put(np.pad(images, padding), self._rows)
    return self._apply(self._params, batch)


def identity_of(backbone: Backbone) -> BackboneIdentity:
  """What a cache says of the backbone that made it."""
  return BackboneIdentity(
    name=backbone.name,
    layer=backbone.embedding,
    weights_sha256=backbone.weights_sha256,
    code_sha256=backbone.code_sha256,
    compute_dtype=backbone.compute_dtype,
  )


def load_embedder(config: ExtractConfig) -> Embedder:
  """Loads the backbone of a job onto the local devices."""
  backbone = load_backbone(config.backbone, config.preprocess)
  return Embedder(backbone, config.batch_size)


def parameter_shardings(
  params: Any, mesh: Mesh, bytes_per_device: float
) -> Any:
  """Where each parameter goes: everywhere, or in slices if that is too much.

  A slice is along the longest axis that the devices (one axis, "data") divide;
  a parameter without such an axis stays whole.
  """

  def sharding(leaf: Any) -> NamedSharding:
    axes = [a for a, size in enumerate(leaf.shape) if size % mesh.size == 0]
    if whole or not axes:
      return NamedSharding(mesh, PartitionSpec())
    longest = max(axes, key=lambda a: leaf.shape[a])
    return NamedSharding(mesh, PartitionSpec(*[None] * longest, "data"))

  total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
  whole = total <= _PARAMETERS_SHARE * bytes_per_device
  return jax.tree.map(sharding, params)
