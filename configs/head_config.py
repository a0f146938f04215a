"""What to train and what it promises, as frozen dataclasses."""

import dataclasses
import math
from typing import Any, Literal, get_args

from oneshot_dp.configs.errors import InputError, check_positive

OptimizerName = Literal["lamb", "adam", "momentum"]
LossName = Literal["softmax", "sigmoid"]
MinibatchName = Literal["poisson", "partition"]
SamplingName = Literal["full", MinibatchName]
InitName = Literal["zero", "normal", "lecun"]
AblationAxis = Literal["optimizer", "init", "epochs", "batch", "clip"]
MethodName = Literal[OptimizerName, "whitened", "least-squares", "multi-step"]
HeadName = Literal[MethodName, "auto"]
AUTO: MethodName = "whitened"
"""What `auto` is where it can be: people know it by that name."""
RelationName = Literal["replace-special", "replace-one"]
ADD_OR_REMOVE_ONE_IS_NO_MORE = (
  "n is published, and tells one row more from one less; use replace-special (a"
  " row, or nothing in its place), which takes the same noise"
)
ReleaseOrder = Literal["nested", "independent"]
PublicUse = Literal["mean", "mean-and-covariance"]


def called(method: str) -> str:
  """What people call a method."""
  return "auto" if method == AUTO else method


_MODERATE = 1e6


def _check_moderate(name: str, value: float | int) -> None:
  """Refuses what would overflow, or never end, after it was charged."""
  if _MODERATE < abs(value) < math.inf:
    raise InputError(f"{name}={value:g} is absurd: give at most {_MODERATE:g}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepsConfig:
  """How a head of several steps is trained.

  Attributes:
    optimizer: that follows the noisy gradients.
    epochs: passes over the rows; default: 60 on full batches (100 where there
      is little noise), 10 on others.
    batch_size: rows of a step, on average; default: all of them.
    sampling: of smaller batches. "poisson": every row is in a batch or not by
      itself, which the accounting makes use of; "partition": each epoch deals
      all rows out once, as shuffling does, which it cannot.
    learning_rate: default: a rule of n, K and the noise.
    l2_clip_norm: C, the largest norm of one example's gradient; default: 0.15
      for rows of norm 1, and 1 for others.
    loss: cross-entropy of a softmax, or of a sigmoid for each class.
    initial_bias: of every sigmoid, not trained; default: that of a probability
      of 1/K. The paper's is -10.
    unit_norm: bring every embedding to norm 1.
    init: "zero"; "normal" of the deviation init_scale; "lecun", normal of
      variance 1/d.
    init_scale: of "normal".
    init_seed: of random weights; public.
    ema_decay: return the exponential moving average of the weights after every
      step, of this decay; default: the last weights.
  """

  optimizer: OptimizerName = "momentum"
  epochs: int | None = None
  batch_size: int | None = None
  sampling: MinibatchName | None = None
  learning_rate: float | None = None
  l2_clip_norm: float | None = None
  loss: LossName = "softmax"
  initial_bias: float | None = None
  unit_norm: bool = True
  init: InitName = "zero"
  init_scale: float | None = None
  init_seed: int = 0
  ema_decay: float | None = None

  def __post_init__(self):
    for field in ("epochs", "batch_size"):
      check_positive(field, getattr(self, field))
    for field in ("learning_rate", "l2_clip_norm"):
      value = getattr(self, field)
      if value is not None and not 0 < value < math.inf:
        raise InputError(f"{field}={value} must be positive and finite.")
      _check_moderate(field, value or 1.0)
    _check_moderate("epochs", self.epochs or 1)
    if (self.batch_size is None) != (self.sampling is None):
      raise InputError(
        f"batch_size={self.batch_size} and sampling={self.sampling} go"
        " together: give both, or neither for full batches."
      )
    if (self.init == "normal") != (self.init_scale is not None):
      raise InputError(
        f"init_scale={self.init_scale} with init={self.init!r}: give the scale"
        " of normal weights, and only theirs."
      )
    if self.init_seed < 0:
      raise InputError(f"init_seed={self.init_seed} must be 0 or more.")
    if self.initial_bias is not None and not math.isfinite(self.initial_bias):
      raise InputError(f"initial_bias={self.initial_bias} must be finite.")
    if self.initial_bias is not None and self.loss != "sigmoid":
      raise InputError(
        f"initial_bias={self.initial_bias} is for loss='sigmoid'; a softmax"
        " does not see it."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
  """How a head is trained, privacy aside.

  Attributes:
    head: "auto": the most accurate, without settings (private whitening, then
      gradient descent: the method "whitened"), or "lamb" where rows cannot have
      that; "lamb" (the paper's), "adam" or "momentum": the optimizer of one
      step; "least-squares": a linear discriminant in closed form from one pass,
      without settings, of which all epsilons together cost the largest;
      "multi-step": gradient descent with every choice open, see steps. What
      follows is for one step only, and steps for several.
    l2_clip_norm: C, the largest norm of one example's gradient.
    initial_bias: b0, the bias that every class starts from.
    train_bias: train the bias too (the kernel always is).
    learning_rate: scales the logits; which class wins does not depend on it.
    eps: eps of LAMB and Adam, in units of the mean gradient.
    eps_in_noise_sds: eps as a multiple of the noise in the gradient instead;
      1 to 4 helps at small epsilon.
    steps: settings of "multi-step".
    balanced: for classes of very different sizes, of "auto": accuracy as a mean
      over classes, by noisy counts of their rows, which are paid for.
  """

  head: HeadName = "lamb"
  l2_clip_norm: float = 1.0
  initial_bias: float = -10.0
  train_bias: bool = False
  learning_rate: float = 1.0
  eps: float = 1e-6
  eps_in_noise_sds: float | None = None
  steps: StepsConfig = StepsConfig()
  balanced: bool = False

  def __post_init__(self):
    if self.balanced and self.head not in ("auto", "whitened"):
      raise InputError(
        f"balanced=True is a setting of head='auto', not of {self.head!r}."
      )
    for name in ("l2_clip_norm", "initial_bias", "learning_rate", "eps"):
      _check_moderate(name, getattr(self, name))
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name in ("head", "balanced") or value == field.default:
        continue
      if field.name == "steps" and self.head != "multi-step":
        raise InputError(
          f"settings of steps are for head='multi-step', not {self.head!r}."
        )
      if field.name != "steps" and not self.is_one_step:
        why = "it has settings of its own, see steps"
        if self.head != "multi-step":
          why = "it sets everything from public sizes; name one, as head='lamb'"
        raise InputError(
          f"{field.name}={value} is for heads of one step, not for"
          f" head={self.head!r}: {why}."
        )

  def settings(self) -> dict[str, Any]:
    """The fields that count for the head, as JSON."""
    values = dataclasses.asdict(self)
    steps = values.pop("steps")
    balanced = {"balanced": True} if values.pop("balanced") else {}
    if self.is_one_step:
      return values
    chosen: dict[str, Any] = {"head": self.head}
    chosen |= {"steps": steps} if self.head == "multi-step" else {}
    return chosen | balanced

  @property
  def is_one_step(self) -> bool:
    """Whether one step is all."""
    return self.head in get_args(OptimizerName)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
  """What the privacy guarantee is about, epsilon aside.

  Attributes:
    delta: δ of each head, well below 1/n; from 1/n on it is refused.
    neighboring_relation: data sets that differ by one example, or nothing in
      its place ("replace-special"), or by one and another in its place, which
      takes twice the noise ("replace-one"). n is public, and the same in both.
    large_delta: insist on a delta of 1/n or more, which protects nobody.
    noise_seed: research only: draw the noise from this seed, which makes
      everything NOT PRIVATE and says so everywhere. Default: the operating
      system's entropy.
  """

  delta: float
  neighboring_relation: RelationName = "replace-special"
  large_delta: bool = False
  noise_seed: int | None = None

  def __post_init__(self):
    if self.neighboring_relation not in get_args(RelationName):
      raise InputError(
        f"neighboring_relation={self.neighboring_relation!r} is none of"
        f" {', '.join(get_args(RelationName))}: {ADD_OR_REMOVE_ONE_IS_NO_MORE}."
      )
