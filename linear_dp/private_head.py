"""Two arrays → private heads, in one call; in no ledger."""

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Float, Int64
from scipy import special

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import NumClassesSource
from oneshot_dp.configs.head_config import HeadName, HeadOptions, PublicStart
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.train import (
  HEADS,
  TrainedHead,
  check_plan,
  cost,
  train,
)

_STORED = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrivateHead:
  """A classifier that is safe to publish as its receipt says.

  Attributes:
    trained: the head, how it was made, and all that left for it.
    num_examples, class_names: n, and of the K classes; public.
    num_classes_source: where K comes from, which must be public.
    privacy_unit: "example", or "unit" where rows had unit_ids.
    is_charged: whether the caller had it charged to something.
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

  def __repr__(self) -> str:
    made, (d, k) = self.trained, self.head.kernel.shape
    size = f"feature_dim={d}, num_classes={k}"
    budget = f"epsilon={made.epsilon}, delta={made.delta}"
    said = "" if made.private else ", NOT PRIVATE"
    return f"PrivateHead({made.name}, {size}, {budget}{said})"

  def logits(self, embeddings: Any) -> Float[np.ndarray, "n K"]:
    """Scores of each class, good for ranking, for embeddings as it learnt from.

    InputError: another d; a row that is not finite in float32, by its place.
    """
    array, d = np.asarray(embeddings), self.head.feature_dim
    if array.ndim != 2 or array.shape[1] != d:
      raise InputError(
        f"embeddings have shape {array.shape}: the head takes [n, {d}]."
      )
    with np.errstate(over="ignore"):  # its logits are not finite either
      features = array.astype(np.float32)
    logits = np.asarray(self.head.ranking().logits(jnp.asarray(features)))
    sound = np.isfinite(logits).all(axis=1)
    if not sound.all():
      raise InputError(
        f"embeddings[{sound.argmin()}] is not finite, or too long for float32:"
        " mend the row, or leave it out."
      )
    return logits

  def predict_proba(self, embeddings: Any) -> Float[np.ndarray, "n K"]:
    """The softmax of the logits, float64: *not calibrated*."""
    return special.softmax(self.logits(embeddings).astype(float), axis=1)

  def predict(self, embeddings: Any) -> Int64[np.ndarray, " n"]:
    """The class with the largest logit, the first of those that tie."""
    return self.logits(embeddings).argmax(axis=1)

  def score(self, embeddings: Any, labels: Any) -> float:
    """The share of right classes; as private as the rows that it is of."""
    return float((self.predict(embeddings) == np.asarray(labels)).mean())

  def receipt(self) -> dict[str, Any]:
    """What it guarantees, and what that follows from: JSON.

    As in receipt.json of `oneshot-dp train`, as far as arrays can know it.
    """
    made, mu2 = self.trained, self.trained.mu_squared
    own = "num_examples", "num_classes_source", "privacy_unit"
    stated = {name: getattr(self, name) for name in own} | {
      "private": made.private,
      "head": made.name,
      "options": dict(made.options),
      "releases": [release._asdict() for release in made.releases],
      "feature_dim": self.head.feature_dim,
      "num_classes": self.head.num_classes,
      "class_names": list(self.class_names),
      "delta": made.delta,
      "neighboring_relation": accounting.NEIGHBORING_RELATION,
      "accountant": accounting.ACCOUNTANT,
      "noise_source": made.noise_source,
      "charged": self.is_charged,
    }
    follows = {
      "mu_squared": mu2,
      "noise_multiplier": mu2 and mu2**-0.5,
      "epsilon": made.epsilon,
      "epsilon_if_replaced": mu2
      and accounting.epsilon_of(4 * mu2, made.delta or 0.0),
    }
    return {"stated": stated, "follows": follows}


def train_heads(
  embeddings: Any,
  labels: Any,
  *,
  num_classes: int,
  class_names: Sequence[str] | None = None,
  epsilons: Sequence[float],
  delta: float,
  head: HeadName = "auto",
  unit_ids: Any = None,
  balanced: bool = False,
  start: Any = None,
  weak_privacy: bool = False,
  source: NoiseSource | None = None,
  charge: Callable[[Fraction, NoiseSource], object] | None = None,
) -> tuple[PrivateHead, ...]:
  """Trains a private head for each ε; all of them cost the largest.

  Formal guarantees: those of `train`: each head is (ε, δ)-DP, and all together
  are as private as that of the largest ε, where a unit (a row, or all rows of
  one of `unit_ids`) is there, or nothing in its place; n and K are public.

  **The heads are in no ledger**: every call costs anew. Pass `charge` to keep
  count, or write a cache (`oneshot_dp.write_cache`) for `oneshot-dp train`.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(2), 500, axis=0), np.arange(1000) // 500
  >>> strict, loose = oneshot_dp.train_heads(
  ...   rows, labels, num_classes=2, epsilons=(1.0, 4.0), delta=1e-6
  ... )
  >>> strict.trained.epsilon, loose.trained.epsilon
  (1.0, 4.0)

  Args:
    embeddings: [n, d] floats, private.
    labels: [n] integers in [0, K), private.
    num_classes: K, public: known without the labels.
    class_names: K public names; None is "0", "1" ...
    epsilons: positive and distinct.
    delta: of each head, in (0, 1), well below 1/n.
    head: "auto" (the most accurate), or the paper's step of another name.
    unit_ids: [n] integers, whose each row is; all rows of a unit are protected
      together. None is a unit per row.
    balanced: of "auto", for classes of very different sizes.
    start: [K, d] numbers, of "auto": a public vector for each class, such as a
      text tower's of its name, to start from; no function of private rows.
    weak_privacy: insist on a δ of 1/n or more, or an ε above 20.
    source: the random bits; None is the operating system's; a seed's marks the
      heads NOT PRIVATE.
    charge: called once, with μ² and the source, before any noise; may raise.

  Returns:
    Heads, in the order of `epsilons`.

  InputError: what cannot be trained on, or by; nothing was charged or drawn.
  """
  source = NoiseSource() if source is None else source
  if not isinstance(source, NoiseSource):  # it would fail after the charge
    raise InputError(f"source={source!r} must be a oneshot_dp.NoiseSource.")
  delta, budget = float(delta), tuple(map(float, epsilons))
  for epsilon in budget:
    accounting.check_budget(epsilon, delta, allow_weak_privacy=weak_privacy)
  data = array_data(
    embeddings, labels, num_classes=int(num_classes), unit_ids=unit_ids
  )
  accounting.check_delta(delta, data.n, allow_weak_privacy=weak_privacy)
  sizes = {"num_classes": data.num_classes, "feature_dim": data.feature_dim}
  public = None if start is None else PublicStart.of(start, **sizes)
  options = HeadOptions(balanced=balanced, start=public)
  check_plan(head=head, n=data.n, options=options, **sizes)
  numbered = map(str, range(data.num_classes))
  names = tuple(numbered if class_names is None else class_names)
  if len(set(names)) != data.num_classes or not all(
    isinstance(name, str) and name for name in names
  ):
    k = data.num_classes
    raise InputError(f"class_names={names} must be {k} different names.")
  rows, paid = HEADS[head].rows(data), cost(budget, delta)
  rows.validate()
  if charge is not None:
    charge(paid, source)
  common = {"head": head, "epsilons": budget, "delta": delta, "paid": paid}
  made = {
    trained.epsilon: PrivateHead(
      trained=trained,
      num_examples=data.n,
      class_names=names,
      num_classes_source="flag" if class_names is None else "class_names",
      privacy_unit=data.unit,
      is_charged=charge is not None,
    )
    for trained in train(rows, source=source, options=options, **common)
  }
  return tuple(made[epsilon] for epsilon in budget)


def train_head(
  embeddings: Any, labels: Any, *, epsilon: float, **options: Any
) -> PrivateHead:
  """Trains one private head: `train_heads` of one ε.

  **In no ledger**; releases add up, so for several ε use that.

  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, labels = np.repeat(np.eye(3), 400, axis=0), np.arange(1200) // 400
  >>> head = oneshot_dp.train_head(
  ...   rows, labels, num_classes=3, epsilon=2.0, delta=1e-6
  ... )
  >>> head.predict(np.eye(3)), head.receipt()["follows"]["epsilon"]
  (array([0, 1, 2]), 2.0)
  """
  return train_heads(embeddings, labels, epsilons=(epsilon,), **options)[0]


def array_data(
  embeddings: Any,
  labels: Any,
  *,
  num_classes: int,
  unit_ids: Any = None,
) -> PrivateDataset:
  """Labelled embeddings in memory as private rows, all checked.

  See `train_heads`; float64 is rounded to float32, other floats
  are used uncopied.

  InputError: a wrong dtype or shape, no rows, an embedding that is not finite
  in float32, a label outside [0, K); by the row, never its label or numbers.
  """
  array = np.asarray(embeddings)
  if array.dtype not in _STORED or array.ndim != 2 or not array.size:
    raise InputError(
      f"embeddings are {array.dtype} {array.shape}: give [n, d], at least one"
      " row, of floats of 16, 32 or 64 bits."
    )
  n, dim = array.shape
  label = _integers("labels", labels, n)
  outside = (label < 0) | (label >= num_classes)
  if outside.any():
    raise InputError(
      f"labels[{outside.argmax()}] is not one of the num_classes={num_classes}"
      f" classes: labels run from 0 to {num_classes - 1}."
    )
  norm = np.empty(n, np.float32)
  with np.errstate(over="ignore"):  # what leaves float32 is refused by its row
    embedding = array.astype(np.float32) if array.dtype == float else array
    for some in (slice(i, i + 4096) for i in range(0, n, 4096)):
      norm[some] = np.linalg.norm(embedding[some].astype(np.float64), axis=1)
  if not np.isfinite(norm).all():
    raise InputError(
      f"embeddings[{np.isfinite(norm).argmin()}] is not finite, or too long"
      " for float32: mend the row, or leave it out."
    )
  columns = {"embedding": embedding, "embedding_norm": norm}
  columns |= {"label": label.astype(np.int32), "example_id": np.arange(n)}
  if unit_ids is not None:
    columns["unit_id"] = _integers("unit_ids", unit_ids, n)
  return PrivateDataset(
    blocks=lambda: [columns],
    n=n,
    feature_dim=dim,
    num_classes=num_classes,
    unit="example" if unit_ids is None else "unit",
  )


def _integers(name: str, values: Any, rows: int) -> Int64[np.ndarray, " n"]:
  array = np.asarray(values)
  if array.dtype.kind not in "iu" or array.shape != (rows,):
    what = f"{array.dtype} {array.shape}"
    raise InputError(f"{name} are {what}: give {rows} integers, one a row.")
  return array.astype(np.int64)
