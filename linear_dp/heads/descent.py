"""Weights that follow noisy gradients: nothing private comes in here."""

from collections.abc import Callable, Iterable

import jax
import numpy as np
import optax
from jaxtyping import Float64

from oneshot_dp.configs.head_config import InitName


def initial_kernel(
  init: InitName, scale: float, shape: tuple[int, int], seed: int
) -> Float64[np.ndarray, "p K"]:
  """Public weights to start from: their seed is public, too.

  "zero"; "normal" of standard deviation `scale`; or "lecun", of variance 1/p.
  """
  if init == "zero":
    return np.zeros(shape)
  sd = scale if init == "normal" else shape[0] ** -0.5
  return np.random.default_rng(seed).normal(0, sd, shape)


def descend(
  start: Float64[np.ndarray, "p K"],
  gradients: Iterable[
    Callable[[Float64[np.ndarray, "p K"]], Float64[np.ndarray, "p K"]]
  ],
  optimizer: optax.GradientTransformation,
  ema_decay: float | None = None,
) -> Float64[np.ndarray, "p K"]:
  """The last weights, or their average with a decay of `ema_decay`.

  Gradients are safe to publish already: for every step, what W gives. The
  average, of the weights after every step, is without its beginning's bias.

  Source: averaging: De et al., "Unlocking High-Accuracy Differentially Private
  Image Classification through Scale", 2022, section 3.
  """
  kernel = start
  average = optax.ema(ema_decay) if ema_decay is not None else optax.identity()
  with jax.enable_x64(True):
    state, averaging = optimizer.init(kernel), average.init(kernel)
    mean = kernel
    for gradient in gradients:
      updates, state = optimizer.update(gradient(kernel), state, kernel)
      kernel = np.asarray(optax.apply_updates(kernel, updates))
      mean, averaging = average.update(kernel, averaging)
    return np.asarray(mean)


def unit_scale(
  kernel: Float64[np.ndarray, "p K"],
) -> Float64[np.ndarray, "p K"]:
  """W at a length of 1 of its longest column: only its direction is used."""
  longest = np.linalg.norm(kernel, axis=0).max()
  return kernel / longest if longest > 0 else kernel
