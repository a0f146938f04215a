"""A trained private head: predictions, and a receipt of what it guarantees."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int64
from scipy import special

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import NumClassesSource
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.train import TrainedHead

_SHARPNESS = 25.0


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrivateHead:
  """A classifier that is as private as its receipt states.

  The weights, the releases behind them and every prediction for rows of your
  own may be published. (`score` on private rows may not: it is exact.)

  Attributes:
    trained: the weights, how they were made, and all that was released.
    num_examples: the public number of rows n that it was trained on.
    class_names: K public names.
    num_classes_source: where K is known from, which must be public.
    privacy_unit: "example", or "unit" where rows had unit ids.
    is_charged: whether the caller had the budget charged to something.
  """

  trained: TrainedHead
  num_examples: int
  class_names: tuple[str, ...]
  num_classes_source: NumClassesSource = "flag"
  privacy_unit: str = "example"
  is_charged: bool = False

  @property
  def head(self) -> LinearHead:
    """The weights alone."""
    return self.trained.head

  @property
  def coef_(self) -> Float[np.ndarray, "K d"]:
    """The weights in scikit-learn's layout; see `logits` for the rows' norm."""
    return np.asarray(self.head.kernel).T

  @property
  def intercept_(self) -> Float[np.ndarray, " K"]:
    """The biases of the classes, as in `logits`."""
    return np.asarray(self.head.ranking().bias)

  def __repr__(self) -> str:
    feature_dim, num_classes = self.head.kernel.shape
    warning = "" if self.trained.private else ", NOT PRIVATE"
    epsilon = self.trained.epsilon
    if epsilon is not None:
      # A head that is read from a folder has the epsilon that follows from its
      # noise, a hair below the one that was asked for: 1.999999998903516.
      epsilon = accounting.format_rounded_up(epsilon)
    return (
      f"PrivateHead({self.trained.name}, feature_dim={feature_dim},"
      f" num_classes={num_classes}, epsilon={epsilon},"
      f" delta={self.trained.delta:g}{warning})"
    )

  def logits(self, embeddings: Any) -> Float[np.ndarray, "n K"]:
    """Returns the score of each class, in float32; good for ranking.

    Args:
      embeddings: [n, d] numbers, from the backbone that it was trained on. A
        head with `unit_norm` brings them to norm 1 itself.

    Raises:
      InputError: another d, or a row that is not finite in float32; the row
        is named by its index.
    """
    array = np.asarray(embeddings)
    feature_dim = self.head.feature_dim
    if array.ndim != 2 or array.shape[1] != feature_dim:
      raise InputError(
        f"embeddings have shape {array.shape}: the head takes [n,"
        f" {feature_dim}]."
      )
    # A number that overflows float32 becomes inf here, and is refused below.
    with np.errstate(over="ignore"):
      features = array.astype(np.float32)
    # Of finite weights, so a logit that is not finite comes from the row.
    logits = np.asarray(self.head.ranking().logits(jnp.asarray(features)))
    is_finite = np.isfinite(logits).all(axis=1)
    if not is_finite.all():
      raise InputError(
        f"embeddings[{is_finite.argmin()}] is not finite, or too long for"
        " float32: fix the row, or leave it out."
      )
    return logits

  def scaled_logits(self, embeddings: Any) -> Float[np.ndarray, "n K"]:
    """Returns logits whose softmax is about as sure as the head is right.

        25·logits/(‖x‖·mean length of a class's weights)

    The lengths of rows and weights say nothing of how sure a head is, so they
    are divided out. The constant 25 is public, and was chosen on CIFAR-10,
    EuroSAT and handwritten digits, where the log-loss of `auto` and `lamb` is
    at most a third more than with the best constant for each head and set. It
    is no calibration on your classes; that would need labels, and budget.

    Args:
      embeddings: see `logits`.

    Raises:
      InputError: see `logits`.
    """
    logits = self.logits(embeddings).astype(np.float64)
    length = np.linalg.norm(np.asarray(self.head.kernel, float), axis=0).mean()
    if not self.head.unit_norm:
      rows = np.asarray(embeddings).astype(np.float64)
      length = length * np.linalg.norm(rows, axis=1, keepdims=True)
    # A row or a kernel of zeros has no direction: all its logits are biases.
    scale = np.divide(
      _SHARPNESS, length, out=np.ones_like(length), where=length > 0
    )
    return scale * logits

  def predict_proba(self, embeddings: Any) -> Float[np.ndarray, "n K"]:
    """Returns the softmax of `scaled_logits`, in float64.

    Args:
      embeddings: see `logits`.

    Returns:
      [n, K]; each row adds up to 1.

    Raises:
      InputError: see `logits`.
    """
    return special.softmax(self.scaled_logits(embeddings), axis=1)

  def predict(self, embeddings: Any) -> Int64[np.ndarray, " n"]:
    """Returns the class of the largest logit, int64 [n]; the first of equals.

    Args:
      embeddings: see `logits`.

    Raises:
      InputError: see `logits`.
    """
    return self.logits(embeddings).argmax(axis=1)

  def score(self, embeddings: Any, labels: Any) -> float:
    """Returns the share of correct classes; as private as the rows are.

    No noise is added: on private rows, the number must not be published.

    Args:
      embeddings: see `logits`.
      labels: the true class of each row, integers [n] from 0.

    Raises:
      InputError: see `logits`.
    """
    return float((self.predict(embeddings) == np.asarray(labels)).mean())

  def receipt(self) -> dict[str, Any]:
    """Returns what the head guarantees and what that follows from, as JSON.

    `stated` is what the training was, `follows` what an accountant derives
    from it. As in receipt.json of `oneshot-dp train`, as far as arrays in
    memory can know it.
    """
    # From the budget. `receipt.derive` of the pipeline, which this package does
    # not know, adds up the releases, and comes to a hair less.
    trained = self.trained
    mu_squared = trained.mu_squared
    releases = []
    for release in trained.releases:
      entry = {
        "name": release.name,
        "shape": release.shape,
        "noise_multiplier": release.noise_multiplier,
      }
      if release.count > 1:  # only of heads that were read from a disk
        entry["count"] = release.count
      releases.append(entry)
    stated = {
      "num_examples": self.num_examples,
      "num_classes_source": self.num_classes_source,
      "privacy_unit": self.privacy_unit,
      "private": trained.private,
      "head": trained.name,
      "options": dict(trained.options),
      "releases": releases,
      "feature_dim": self.head.feature_dim,
      "num_classes": self.head.num_classes,
      "class_names": list(self.class_names),
      "delta": trained.delta,
      "neighboring_relation": accounting.NEIGHBORING_RELATION,
      "accountant": accounting.ACCOUNTANT,
      "noise_source": trained.noise_source,
      "charged": self.is_charged,
    }
    follows: dict[str, float | None] = {
      "mu_squared": mu_squared,
      "noise_multiplier": None,
      "epsilon": trained.epsilon,
      "epsilon_if_replaced": None,
    }
    if mu_squared:
      # Replacing a unit by another is removing one and adding one: twice μ.
      follows["noise_multiplier"] = mu_squared**-0.5
      follows["epsilon_if_replaced"] = accounting.epsilon_of(
        4 * mu_squared, trained.delta or 0.0
      )
    return {"stated": stated, "follows": follows}
