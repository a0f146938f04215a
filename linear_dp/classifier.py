"""A private head as a classifier of scikit-learn, which must be there."""

import dataclasses
import functools
import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from oneshot_dp.linear_dp.private_head import train_head

_FLOATS = (np.float32, np.float64)


@functools.cache  # once in a process
def _tell() -> None:
  warnings.warn(
    "the guarantee is of fit alone: a scaler or selection that a Pipeline fits"
    " to private rows, and cross-validation on them, are outside of it (see"
    " DPLinearClassifier; this is said once).",
    stacklevel=3,
  )


class DPLinearClassifier(ClassifierMixin, BaseEstimator):
  """`oneshot_dp.train_head` by scikit-learn's rules.

  Formal guarantees: `private_head_` is (epsilon, delta)-DP as its receipt says.
  Every `fit` is a release of its own, **in no ledger**, also those of searches
  and `cross_val_score`, whose scores are of private rows besides. What a
  `Pipeline` fits (`StandardScaler` ...) leaves without noise: **no guarantee**.

  >>> import warnings
  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, pets = np.repeat(np.eye(2), 500, axis=0), ["cat", "dog"]
  >>> classifier = oneshot_dp.DPLinearClassifier(epsilon=2.0, classes=pets)
  >>> with warnings.catch_warnings(action="ignore"):  # of what is said above
  ...   classifier.fit(rows, np.repeat(pets, 500)).predict(np.eye(2))
  array(['cat', 'dog'], dtype='<U3')

  Args:
    epsilon, delta, head, source: see `train_heads`; no `random_state`, for with
      a seed the head would be NOT PRIVATE.
    classes: list of all classes, public. None takes them from the labels.

  Attributes:
    classes_: the classes, sorted.
    private_head_: the `PrivateHead`, which `oneshot_dp.save_head` writes.
  """

  def __init__(
    self,
    epsilon: Any = 1.0,
    delta: Any = 1e-6,
    head: Any = "auto",
    classes: Any = None,
    source: Any = None,
  ):
    # By its rules nothing is checked before `fit`.
    self.epsilon, self.delta, self.head = epsilon, delta, head
    self.classes, self.source = classes, source

  def fit(self, X: Any, y: Any, unit_ids: Any = None) -> Self:
    """Trains on private [n, d] embeddings and [n] labels of any kind."""
    _tell()
    X, y = validate_data(self, X, y, dtype=_FLOATS)
    check_classification_targets(y)
    stated = self.classes is not None
    present = np.unique(y)
    self.classes_ = np.unique(np.asarray(self.classes)) if stated else present
    if len(self.classes_) < 2:
      raise ValueError("there is only one class; a classifier needs two.")
    if not np.isin(present, self.classes_).all():
      raise ValueError("a label is none of `classes`: name all of them.")
    given = {name: getattr(self, name) for name in ("delta", "head", "source")}
    trained = train_head(
      X,
      np.searchsorted(self.classes_, y),
      num_classes=len(self.classes_),
      class_names=[str(name) for name in self.classes_],
      epsilon=self.epsilon,
      unit_ids=unit_ids,
      **given,
    )
    if not stated:
      warnings.warn(
        "classes were taken from the private labels: the guarantee holds only"
        " if they are public anyway; give classes=[...].",
        stacklevel=2,
      )
      labels = "labels (treated as public)"
      trained = dataclasses.replace(trained, num_classes_source=labels)
    self.private_head_ = trained
    return self

  def decision_function(self, X: Any) -> np.ndarray:
    """The logits [n, K]; of two classes the second's less the first's, [n]."""
    logits = self._of(X, "logits")
    return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

  def predict_proba(self, X: Any) -> np.ndarray:
    """The softmax of the logits, [n, K]: not calibrated."""
    return self._of(X, "predict_proba")

  def predict(self, X: Any) -> np.ndarray:
    """The class with the largest logit, [n]."""
    best = self._of(X, "predict")  # looks first whether it was fitted
    return self.classes_[best]

  def _of(self, X: Any, what: str) -> np.ndarray:
    check_is_fitted(self)
    rows = validate_data(self, X, reset=False, dtype=_FLOATS)
    return getattr(self.private_head_, what)(rows)
