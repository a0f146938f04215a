"""A backbone that needs no weights: random cosine features of small patches.

For every 5 x 5 patch p of the image, centred and scaled to unit contrast,

    φ_k(p) = cos(w_k · (p − mean p) / √(‖p − mean p‖² + c²) + b_k),

averaged over each cell of a 4 x 4 grid: 16 filters x 16 cells = 256 features.
Nothing is fitted to any data. It stands in for a pretrained backbone in demos
and tests, and works with the one-step head, which has no centring of its own,
because a cosine of random phase is centred on zero.

Source: random cosine features, Rahimi and Recht, "Random Features for
Large-Scale Kernel Machines" (NeurIPS 2007), algorithm 1; random filters of
contrast-normalised patches, pooled over a grid: Coates, Ng and Lee, "An
Analysis of Single-Layer Networks" (AISTATS 2011), section 3.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32

from oneshot_dp.configs.errors import InputError

_PATCH = 5
_FILTERS = 16
_GRID = 4
FEATURE_DIM = _FILTERS * _GRID**2

# Standard deviation of w_k · (a patch of unit contrast), radians: about a turn
# between one patch and its negative. 2 to 3 are equally good on digits.
_BANDWIDTH = 2.5
# RMS contrast, in normalised units, under which a patch counts as flat.
_FLAT = 0.2

_PRECISION = jax.lax.Precision.HIGHEST


def make_params() -> dict[str, np.ndarray]:
  """The filters and phases, the same bits on every platform and version.

  Only the raw stream of Philox is used, which NumPy promises to keep (the
  methods of its Generator may change): its top 24 bits fill a float32 exactly.
  "kernel" is float32 [5, 5, 3, 16], uniform around zero, every filter centred;
  "phase" float32 [16], uniform in [0, 2π).
  """
  fan_in = _PATCH * _PATCH * 3
  bits = np.random.Philox(key=0).random_raw((fan_in + 1) * _FILTERS)
  uniform = (bits >> np.uint64(40)).astype(np.float64) / 2**24
  weights = uniform[_FILTERS:].reshape(fan_in, _FILTERS)
  # A uniform variable on [0, 1) has variance 1/12. Because the filters sum to
  # zero they take a patch's mean away on their own.
  weights = (weights - weights.mean(axis=0)) * np.sqrt(12) * _BANDWIDTH
  return {
    "kernel": weights.reshape(_PATCH, _PATCH, 3, _FILTERS).astype(np.float32),
    "phase": (uniform[:_FILTERS] * (2 * np.pi)).astype(np.float32),
  }


def apply(
  params: dict[str, np.ndarray] | dict[str, Array],
  images: Float32[Array, "b s s 3"],
) -> Float32[Array, "b 256"]:
  """Embeds normalised images of any side from 4 pixels, in [-1, 1]."""
  side = images.shape[1]
  if side < _GRID:
    raise InputError(
      f"image_size={side} is too small for random_patches: use {_GRID} or more."
    )
  margin = _PATCH // 2
  padded = jnp.pad(
    images, ((0, 0), (margin, margin), (margin, margin), (0, 0)), mode="edge"
  )
  # Over all values of a patch, one axis after the other: at once it would take
  # longer than the filters.
  moments = jnp.stack(
    [padded.mean(axis=-1), jnp.square(padded).mean(axis=-1)], axis=-1
  )
  moments = nn.avg_pool(nn.avg_pool(moments, (_PATCH, 1)), (1, _PATCH))
  mean, mean_square = jnp.split(moments, 2, axis=-1)
  variance = mean_square - jnp.square(mean)
  contrast = jnp.sqrt(_PATCH**2 * 3 * (jnp.maximum(variance, 0) + _FLAT**2))
  projected = jax.lax.conv_general_dilated(
    padded,
    jnp.asarray(params["kernel"]),
    window_strides=(1, 1),
    padding="VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    precision=_PRECISION,
  )
  features = jnp.cos(projected / contrast + params["phase"])
  # Averages over four runs of pixels whose lengths differ by one at most.
  cell = np.arange(side) * _GRID // side
  member = cell == np.arange(_GRID)[:, None]
  pool = (member / member.sum(axis=1, keepdims=True)).astype(np.float32)
  pooled = jnp.einsum(
    "gi,hj,bijk->bghk", pool, pool, features, precision=_PRECISION
  )
  return pooled.reshape(len(images), FEATURE_DIM)
