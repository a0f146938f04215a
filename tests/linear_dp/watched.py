"""What is drawn and called, written down as it happens."""

import dataclasses
import types
from typing import Any

import numpy as np
import pytest

from oneshot_dp.linear_dp.noise.rounded_gaussian import rounded_gaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource


class WatchedSource(NoiseSource):
  """The system's bits; it writes down whenever any are drawn."""

  def __init__(self, events: list):
    super().__init__()
    self.events = events

  def words(self, count: int) -> np.ndarray:
    self.events.append("noise")
    return super().words(count)

  def bits(self, count: int) -> np.ndarray:
    self.events.append("noise")
    return super().bits(count)


@dataclasses.dataclass
class Noise:
  """What `rounded_gaussian` was asked for, and what it gave."""

  shape: tuple[int, ...]
  sd: float
  source: NoiseSource
  values: np.ndarray


def all_noise(
  monkeypatch: pytest.MonkeyPatch, *modules: types.ModuleType
) -> list[Noise]:
  """All noise that modules draw, in order."""
  found: list[Noise] = []

  def watched(shape, sd, source):
    values = rounded_gaussian(shape, sd, source)
    found.append(Noise(shape, sd, source, values))
    return values

  for module in modules:
    monkeypatch.setattr(module, "rounded_gaussian", watched)
  return found


def recorded(
  monkeypatch: pytest.MonkeyPatch, module: types.ModuleType, name: str
) -> list[tuple[tuple, dict, Any]]:
  """The arguments and results of one of a module's calls, in order."""
  found: list[tuple[tuple, dict, Any]] = []
  real = getattr(module, name)

  def watched(*args: Any, **options: Any) -> Any:
    result = real(*args, **options)
    found.append((args, options, result))
    return result

  monkeypatch.setattr(module, name, watched)
  return found
