"""Weight standardisation, once on the host instead of in every forward pass.

It depends on the weights alone. Done when the file is read, in float64, it
leaves plain convolution kernels, and the sums cost no accelerator time.
"""

import numpy as np


def standardize(
  kernel: np.ndarray,
  epsilon: float,
  gain: np.ndarray | float = 1.0,
) -> np.ndarray:
  """gain · (w − mean)/√(var + epsilon), for each output channel.

  Mean and variance (of the population, not of a sample) are over all axes but
  the last. With `gain` = γ·g/√fan_in, g learnt per channel, it is the scaled
  weight standardisation of networks without normalisation.

  Args:
    kernel: [..., out], of any floating dtype.
    epsilon: added to the variance.
    gain: scalar, or [out].

  Returns:
    float32 [..., out], contiguous. A channel of equal values becomes 0, one
    with a value that is not finite becomes NaN.

  Source: Qiao et al., "Micro-Batch Training with Batch-Channel Normalization
  and Weight Standardization" (2019), equation 8; Brock et al. (ICLR 2021),
  "Characterizing signal propagation to close the performance gap in
  unnormalized ResNets", equation 1.
  """
  wide = kernel.astype(np.float64, order="C").reshape(-1, kernel.shape[-1])
  with np.errstate(invalid="ignore"):
    wide -= wide.mean(axis=0)
  # einsum makes no array of squares
  variance = np.einsum("io,io->o", wide, wide) / len(wide)
  wide *= np.asarray(gain, np.float64) / np.sqrt(variance + epsilon)
  return wide.astype(np.float32).reshape(kernel.shape)
