"""Probabilities that mean something, by public labels and one number."""

import numpy as np
from jaxtyping import Float, Integer
from scipy import optimize, special

from oneshot_dp.configs.errors import InputError

_LOG_RANGE = (-12.0, 12.0)


def probabilities(
  logits: Float[np.ndarray, "n K"], temperature: float
) -> Float[np.ndarray, "n K"]:
  """softmax(logits / T), in float64."""
  return special.softmax(logits.astype(np.float64) / temperature, axis=1)


def fit_temperature(
  logits: Float[np.ndarray, "n K"], labels: Integer[np.ndarray, " n"]
) -> float:
  """The T > 0 whose softmax(logits / T) gives the labels the most likelihood.

  One step leaves logits that are good for ranking and for nothing else: their
  size follows the learning rate. T is an exact statistic of the labels, so
  these must be public. What comes of it is calibrated for images like these.

  >>> logits = np.array([[2.0, 0.0]] * 4)
  >>> round(fit_temperature(logits, np.array([0, 0, 0, 1])), 3)  # 2 / log 3
  1.82

  InputError: no T is best: all labels have the largest logits, or none of it is
  better than chance.

  Source: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
  section 4.2.
  """
  scores = logits.astype(np.float64)
  scores -= scores.max(axis=1, keepdims=True)
  size = -scores.mean() or 1.0
  scores /= size
  of_labels = np.take_along_axis(scores, labels[:, None], axis=1)[:, 0]

  def loss(log_beta: float) -> float:
    beta = np.exp(log_beta)
    return float(
      (special.logsumexp(beta * scores, axis=1) - beta * of_labels).mean()
    )

  found = optimize.minimize_scalar(
    loss, bounds=_LOG_RANGE, method="bounded", options={"xatol": 1e-9}
  )
  if min(abs(found.x - end) for end in _LOG_RANGE) < 1e-3:
    raise InputError(
      f"no temperature fits these {len(labels):,} rows: the head is right on"
      " all of them, or no better than chance; calibrate on others."
    )
  return float(size / np.exp(found.x))
