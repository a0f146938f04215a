r"""`auto`: private centring and whitening, then steps of gradient descent.

1. The mean m of the rows at norm 1 leaves once, is shrunk towards zero by as
   much as it is noise, and is taken off every row.
2. Where there are rows enough, their second moment leaves, and the inverse
   square root A of their covariance (with a ridge of the size of the noise)
   becomes public. Rows are mapped by A and brought to norm 1.
3. 19 full-batch steps with momentum follow, each along a noisy sum of clipped
   gradients of the softmax cross-entropy, from zero weights, from a public
   start, or from the head of a smaller ε.

For `balanced`, rows of classes are counted with noise, and steps have the log
of their shares added to the logits, which the head leaves out. From a public
start S rows are not centred, so that A·W₀ = S ranks as S does. Privacy units of
many rows are counted first. The constants were chosen by test accuracy on
CIFAR-10, EuroSAT and synthetic features: nothing is chosen on yours.

Source: private whitening and few full-batch steps are near Mehta et al.,
"Differentially Private Image Classification from Features" (TMLR 2023, DP-FC);
James & Stein, "Estimation with quadratic loss" (1961); Menon et al., "Long-tail
learning via logit adjustment" (ICLR 2021), equation 10.
"""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.statistics import (
  RowStatistic,
  class_counts,
  integer_kernel,
  residual,
  row_weights,
  second_moment,
  unit_count,
)

UNITS, MEAN, COUNTS, MOMENT = 0.005, 0.02, 0.02, 0.06
"""Shares of μ² for what is released once; the rest is for the steps."""
STEPS, MOMENTUM = 19, 0.5
CLIP, BALANCED_CLIP = 0.03, 0.3
"""C, of gradients that could be √2 long: rows that are nearly right matter as
much as those that are wrong; but those of small classes are wrong for long."""
ROWS_TO_WHITEN = 80
"""With fewer rows of a class than so many times σ, directions of little
variance bring more noise than they are worth."""
RIDGE, LEAST_RIDGE = 2.5, 1e-6
START_LENGTH, ROWS_TO_LEAVE_START = 10.0, 50.0

Square = Float64[np.ndarray, "d d"]
Kernel = Float64[np.ndarray, "d K"]


def auto(
  sums: PrivateSums,
  rows: Rows,
  buys: float,
  had: float = 0.0,
  last: Mapping[str, np.ndarray] | None = None,
  options: HeadOptions | None = None,
) -> tuple[LinearHead, dict[str, np.ndarray]]:
  """The most accurate head; good for ranking only, of embeddings at norm 1.

  Formal guarantees: Gaussian mechanisms whose μ² add up to `buys` at most, each
  on one sum of sensitivity W·R, however it depends on what left before.

  Args:
    sums: the door.
    rows: all at norm 1, kept where they fit: there are 20 passes.
    buys: μ² of this head alone; infinite for a baseline without noise.
    had: μ² of the head that it goes on from, if there is one.
    last: what that returned: its weights [d, K] and their length, public.
    options: balanced, and a public start, where it does not go on.
  """
  options = options or HeadOptions()
  own, sigma = buys**-0.5, (had + buys) ** -0.5
  num_classes, d = rows.data.num_classes, rows.feature_dim
  centres, left = not options.start, 1.0
  if last:  # a start is where the first head began
    centres = any(key.startswith("mean/") for key in sums.estimates)

  def bought(
    share: float, name: str, statistic: RowStatistic, *public: object
  ) -> tuple[np.ndarray, float]:
    nonlocal left
    left -= share
    return sums.release(
      name, rows, statistic, mu_squared=share * buys, public=public
    )

  n = float(rows.data.n)
  if rows.data.has_units:
    n = max(1.0, np.rint(bought(UNITS, "units", unit_count)[0].item()))
  prior = None
  if options.balanced:
    classes = np.arange(num_classes)
    prior = log_prior(*bought(COUNTS, "class counts", class_counts, classes))
  mean = np.zeros(d)
  if centres:
    total, noise = bought(MEAN, "mean", row_weights)
    mean = shrunk(total.reshape(d) / n, noise / n)
  matrix = inverse = None
  if n >= ROWS_TO_WHITEN * sigma * num_classes:
    moment, noise = bought(MOMENT, "second moment", second_moment)
    # Noise of σ on the diagonal and σ/√2 beside it, as of a symmetric release.
    covariance = (moment + moment.T) / 2 - n * np.outer(mean, mean)
    ridge = RIDGE * noise * math.sqrt(MOMENT * num_classes * d)
    ridge = max(ridge, LEAST_RIDGE * n)
    matrix, inverse = inverse_square_root(covariance, ridge)
  mapped = rows.mapped(mean, matrix)

  kernel = np.zeros((d, num_classes))
  if last:
    kernel = of_length(last["length"].item(), _times(inverse, last["kernel"]))
  elif options.start is not None:
    # The fewer rows, the less do steps, whose noise is the same, turn it.
    few = ROWS_TO_LEAVE_START * num_classes * sigma / n
    sure = START_LENGTH * math.sqrt(max(1.0, few))
    kernel = of_length(sure, _times(inverse, options.start.kernel()))
  # The noise alone, walking freely, would move a logit by about b; what goes on
  # from a head is moved by the share of the budget that is new.
  b = 1 + math.log10(num_classes) / 2
  new = (sigma / own) ** 2 if last else 1.0
  clip = BALANCED_CLIP if options.balanced else CLIP
  noise = max(own, 1.0) / math.sqrt(left)
  rate = new * b * n * (1 - MOMENTUM) / (STEPS * clip * noise)
  of_step, velocity = left * buys / STEPS, np.zeros_like(kernel)
  for _ in range(STEPS):
    integers, step = integer_kernel(kernel)
    gradient, _ = sums.release(
      "gradient",
      mapped,
      residual,
      mu_squared=of_step,
      public=(integers, step, clip, prior),
      cache=False,
    )
    velocity = MOMENTUM * velocity + gradient.T * (clip / n)
    kernel = kernel - rate * velocity
  length = np.linalg.norm(kernel, axis=0).mean()
  kernel = _times(matrix, kernel)
  # Only its direction is used.
  longest = np.linalg.norm(kernel, axis=0).max()
  published = kernel / longest if longest > 0 else kernel
  head = LinearHead(
    kernel=published.astype(np.float32),
    bias=(-mean @ published).astype(np.float32),
    unit_norm=centres,
  )
  return head, {"kernel": kernel, "length": np.array(length)}


def shrunk(mean: Float64[np.ndarray, " d"], sd: float) -> np.ndarray:
  """m·max(0, 1 − (d − 2)·sd²/‖m‖²): a mean of d numbers, each of noise sd.

  >>> shrunk(np.array([3.0, 0.0, 4.0, 0.0]), 1.0)
  array([2.76, 0.  , 3.68, 0.  ])
  """
  noise = max(0, len(mean) - 2) * sd**2
  return mean * max(0.0, 1 - noise / max(float(mean @ mean), 1e-300))


def log_prior(counts: np.ndarray, noise: float) -> Float64[np.ndarray, " K"]:
  """The logs of the classes' shares; a count is its noise at least, and 1."""
  counts = np.maximum(counts.ravel(), max(noise, 1.0))
  return np.log(counts / counts.sum())


def inverse_square_root(
  covariance: Square, ridge: float
) -> tuple[Square | None, Square | None]:
  """A = (max(M, 0) + ridge)^(−1/2) of a symmetric M, and its inverse.

  Directions a thousand times shorter in A than the longest are 0 in A⁻¹, where
  a kernel has nothing. None, for rows as they are: LAPACK did not converge.
  """
  try:
    values, vectors = np.linalg.eigh(covariance)
  except np.linalg.LinAlgError:
    return None, None
  a = 1 / np.sqrt(np.maximum(values, 0) + ridge)
  back = np.where(a > 1e-3 * a.max(), 1 / a, 0)
  return (vectors * a) @ vectors.T, (vectors * back) @ vectors.T


def _times(matrix: Square | None, kernel: Kernel) -> Kernel:
  return kernel if matrix is None else matrix @ kernel


def of_length(wanted: float, kernel: Kernel) -> Kernel:
  """The kernel at this mean length; one of zeros stays what it is."""
  length = np.linalg.norm(kernel, axis=0).mean()
  return kernel * (wanted / length) if length > 0 else kernel
