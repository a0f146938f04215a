"""What a head was made by, as its receipt states it."""

import dataclasses
from typing import Any, Protocol, Self, runtime_checkable

from dp_accounting import NeighboringRelation

from linear_dp import logistic, whitened
from linear_dp.clipping import GRID_RADIUS, ClippedGradientGrid
from linear_dp.whitened import WhiteningRule

UNCLIPPED = "nothing"
"""What is clipped where nothing bounds the influence of a row."""


@runtime_checkable
class Mechanism(Protocol):
  """A way to a head: all that its guarantee depends on, but the noise.

  `as_json` holds parameters and what follows from them; `from_json` reads the
  parameters only, so that comparing one with the other recomputes the rest.
  """

  def as_json(self) -> dict[str, Any]:
    """The receipt's section about it."""
    ...

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """In the units of the statement's noise_sd."""
    ...

  def training(self) -> dict[str, Any]:
    """Fields of the HeadConfig that it fixes."""
    ...

  def in_words(self, training: dict[str, Any]) -> str:
    """How the head was trained, for people."""
    ...


def mechanism_of(section: dict[str, Any]) -> Mechanism:
  """Reads the receipt's section.

  Raises:
    KeyError, TypeError, ValueError: it is of no mechanism that we know.
  """
  kinds: dict[str, type[OneStep] | type[Whitened] | type[Logistic]] = {
    OneStep.KIND: OneStep,
    Whitened.KIND: Whitened,
    Logistic.KIND: Logistic,
  }
  return kinds[section["kind"]].from_json(section)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneStep:
  """The paper's: one step along the noisy sum of clipped gradients.

  Attributes:
    grid: the clipping.
  """

  KIND = "one step"
  grid: ClippedGradientGrid

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters."""
    fields = [field.name for field in dataclasses.fields(ClippedGradientGrid)]
    return cls(
      grid=ClippedGradientGrid(**{name: section[name] for name in fields})
    )

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanism on the integer sum of clipped first-step"
      " gradients, rounded to the grid",
      "statistic": "G = rint(p0*T) - S, released as G + round(N(0, sd^2))",
      "sensitivity": "(m*B*|r| + (1 + 2^-10)*sqrt(K*D)) grid steps, where m is"
      " rows_per_unit (1 where units are clipped), doubled for REPLACE_ONE",
      **dataclasses.asdict(self.grid),
      "residual_norm": self.grid.residual_norm,
      "grid_radius": GRID_RADIUS,
      "grid_step": self.grid.step,
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """In grid steps."""
    return self.grid.sensitivity(relation)

  def training(self) -> dict[str, Any]:
    """See `Mechanism`."""
    names = ("l2_clip_norm", "initial_bias", "train_bias")
    return {name: getattr(self.grid, name) for name in names}

  def in_words(self, training: dict[str, Any]) -> str:
    """See `Mechanism`."""
    return (
      f"one full-batch step of {training['head']} from zero weights and bias"
      f" {self.grid.initial_bias:g}, gradients clipped to norm"
      f" {self.grid.l2_clip_norm:g}"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whitened:
  """Private whitening and several noisy steps.

  Attributes:
    rule: its settings.
  """

  KIND = "whitened"
  rule: WhiteningRule

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters."""
    fields = [field.name for field in dataclasses.fields(WhiteningRule)]
    return cls(rule=WhiteningRule(**{name: section[name] for name in fields}))

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanisms on the exact second moment of the unit-norm"
      " rows, once, and on sums of clipped softmax gradients, num_steps times",
      "statistic": "rint(M/B) + round(noise) of moment_noise_multiplier, and"
      " rint(F/step) + round(noise) of step_noise_multiplier for every step",
      "sensitivity": "B + (1 + 2^-10)*d grid steps for M/B; for a step, B + (1"
      " + 2^-10)*sqrt(K*d) grid steps and the bound on the float64 error of F;"
      " doubled for REPLACE_ONE. All together amount to one Gaussian mechanism"
      " of noise_multiplier",
      **dataclasses.asdict(self.rule),
      "moment_noise_multiplier": self.rule.moment_noise_multiplier,
      "step_noise_multiplier": self.rule.step_noise_multiplier,
      "num_steps": self.rule.num_steps,
      "clip_norm": whitened.CLIP_NORM,
      "momentum": whitened.MOMENTUM,
      "ridge": self.rule.ridge,
      "learning_rate": self.rule.learning_rate,
      "grid_radius": GRID_RADIUS,
      "rows_per_unit": 1,
      "clipped": "row",
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """1: noise is stated in units of the sensitivity, in any relation."""
    del relation
    return 1.0

  def training(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {"head": self.KIND}

  def in_words(self, training: dict[str, Any]) -> str:
    """See `Mechanism`."""
    del training
    return (
      "private whitening of the unit-norm embeddings, then"
      f" {self.rule.num_steps} full-batch steps of gradient descent with"
      " momentum from zero weights, gradients clipped to norm"
      f" {whitened.CLIP_NORM:g}"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logistic:
  """The logistic probe, which no noise protects: NOT PRIVATE.

  Attributes:
    num_examples: n.
    feature_dim: d.
    num_classes: K.
  """

  KIND = "logistic"
  num_examples: int
  feature_dim: int
  num_classes: int

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters."""
    fields = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: section[name] for name in fields})

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "kind": self.KIND,
      "name": "none: multinomial logistic regression on the rows themselves",
      **dataclasses.asdict(self),
      **self.training(),
      "rows_per_unit": 1,
      "clipped": UNCLIPPED,
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """Of nothing that is released with noise."""
    del relation
    return 1.0

  def training(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "head": self.KIND,
      "l2_penalty": logistic.l2_penalty(self.num_examples),
    }

  def in_words(self, training: dict[str, Any]) -> str:
    """See `Mechanism`."""
    del training
    return "logistic regression on standardised embeddings, without privacy"
