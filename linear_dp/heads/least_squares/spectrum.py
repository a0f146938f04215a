r"""Eigenvalues of a symmetric matrix, as seen behind symmetric noise.

Noise of deviation s on the diagonal and s/√2 beside it spreads the eigenvalues
of M + noise by up to √2·s·√d, and turns its eigenvectors: the mean ⟨v, Mv⟩
along an eigenvector v of eigenvalue λ is not λ but, for large d,

    ξ(λ) = λ − s²·Σ_j (λ − λ_j)/((λ − λ_j)² + η²)

over all eigenvalues λ_j, η → 0 smoothing the sum. Of noise alone it is 0.

Source: Bun, Allez, Bouchaud & Potters, "Rotational invariant estimator for
general noisy matrices" (IEEE Trans. Inf. Theory 2016), equation for additive
Gaussian noise.
"""

import math

import numpy as np
from jaxtyping import Float64


def denoised(
  values: Float64[np.ndarray, " d"], noise_sd: float
) -> Float64[np.ndarray, " d"]:
  """ξ of each eigenvalue, never negative and in the same order.

  Args:
    values: [d] eigenvalues, ascending, of M ≥ 0 with noise.
    noise_sd: s, the deviation of the noise on the diagonal.

  Returns:
    [d] float64.
  """
  if noise_sd == 0:
    return np.maximum(values, 0)
  smoothing = math.sqrt(2) * noise_sd
  gaps = values[:, None] - values
  drift = (gaps / (gaps**2 + smoothing**2)).sum(axis=1)
  return np.maximum.accumulate(np.maximum(values - noise_sd**2 * drift, 0))
