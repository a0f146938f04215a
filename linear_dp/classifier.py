"""A private head as a scikit-learn classifier; needs scikit-learn."""

import dataclasses
import functools
import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from oneshot_dp.linear_dp.api import train_head

_FLOATS = (np.float32, np.float64)


@functools.cache
def _warn_once() -> None:
  """Warns, once in a process, of what the guarantee does not cover."""
  warnings.warn(
    "the guarantee is of fit alone: a scaler or selection that a Pipeline fits"
    " to private rows, and cross-validation on them, are outside of it (see"
    " DPLinearClassifier; this is shown once).",
    stacklevel=3,
  )


class DPLinearClassifier(ClassifierMixin, BaseEstimator):
  """`oneshot_dp.train_head` as a scikit-learn-compatible classifier.

  >>> import warnings
  >>> import numpy as np
  >>> import oneshot_dp
  >>> rows, pets = np.repeat(np.eye(2), 500, axis=0), ["cat", "dog"]
  >>> classifier = oneshot_dp.DPLinearClassifier(epsilon=2.0, classes=pets)
  >>> with warnings.catch_warnings(action="ignore"):  # of what is said below
  ...   classifier.fit(rows, np.repeat(pets, 500)).predict(np.eye(2))
  array(['cat', 'dog'], dtype='<U3')

  Formal guarantees:
    `private_head_` is (epsilon, delta)-DP as its receipt states. Every `fit`
    is a release of its own, **in no ledger**, also the fits of searches and of
    `cross_val_score`, whose scores are of private rows besides. What a
    `Pipeline` fits (`StandardScaler` …) is published without noise: **no
    guarantee**.

  Args:
    epsilon: see `train_heads`, as for delta, head and source.
    delta: in (0, 1), well below 1/n.
    head: "auto", or the paper's step.
    classes: list of all classes, public. None takes them from the labels.
    source: the random bits of the noise. There is no `random_state`: with a
      seed the head would be NOT PRIVATE.

  Attributes:
    classes_: the classes, sorted.
    private_head_: the `PrivateHead`, which `oneshot_dp.save_head` writes.
    coef_: [K, d] weights.
    intercept_: [K] biases.
  """

  def __init__(
    self,
    epsilon: Any = 1.0,
    delta: Any = 1e-6,
    head: Any = "auto",
    classes: Any = None,
    source: Any = None,
  ):
    # scikit-learn's rule: nothing is checked or converted before `fit`.
    self.epsilon = epsilon
    self.delta = delta
    self.head = head
    self.classes = classes
    self.source = source

  @property
  def coef_(self) -> np.ndarray:
    """[K, d] weights; see `PrivateHead.coef_`."""
    return self._fitted_head().coef_

  @property
  def intercept_(self) -> np.ndarray:
    """[K] biases."""
    return self._fitted_head().intercept_

  def fit(self, X: Any, y: Any, unit_ids: Any = None) -> Self:
    """Trains on private rows.

    Args:
      X: [n, d] embeddings.
      y: [n] labels of any kind that scikit-learn takes.
      unit_ids: [n] integers or strings, whose each row is; see `train_heads`.

    Raises:
      ValueError: fewer than two classes, or a label that is none of `classes`.
    """
    _warn_once()
    rows, labels = validate_data(self, X, y, dtype=_FLOATS)
    check_classification_targets(labels)
    present = np.unique(labels)
    # Classes that are read off the labels depend on private rows: a class with
    # one example would show that it is there. scikit-learn expects it to work
    # anyway.
    if self.classes is None:
      self.classes_ = present
    else:
      self.classes_ = np.unique(np.asarray(self.classes))
    if len(self.classes_) < 2:
      raise ValueError("there is only one class; a classifier needs two.")
    if not np.isin(present, self.classes_).all():
      raise ValueError("a label is none of `classes`: name all of them.")
    # Labels become numbers in the order of `classes_`, which is sorted, as
    # scikit-learn has it: column k of every answer is class k.
    trained = train_head(
      rows,
      np.searchsorted(self.classes_, labels),
      num_classes=len(self.classes_),
      class_names=[str(name) for name in self.classes_],
      epsilon=self.epsilon,
      delta=self.delta,
      head=self.head,
      unit_ids=unit_ids,
      source=self.source,
    )
    if self.classes is None:
      warnings.warn(
        "classes were taken from the private labels: the guarantee holds only"
        " if they are public anyway; give classes=[...].",
        stacklevel=2,
      )
      trained = dataclasses.replace(
        trained, num_classes_source="labels (treated as public)"
      )
    self.private_head_ = trained
    return self

  def decision_function(self, X: Any) -> np.ndarray:
    """Returns scaled logits [n, K]; for two classes their difference, [n]."""
    logits = self._fitted_head().scaled_logits(self._valid_rows(X))
    if logits.shape[1] == 2:
      return logits[:, 1] - logits[:, 0]
    return logits

  def predict_proba(self, X: Any) -> np.ndarray:
    """Returns probabilities [n, K]; see `PrivateHead.predict_proba`."""
    return self._fitted_head().predict_proba(self._valid_rows(X))

  def predict(self, X: Any) -> np.ndarray:
    """Returns for each row the class with the largest logit, [n]."""
    index = self._fitted_head().predict(self._valid_rows(X))
    return self.classes_[index]

  def _fitted_head(self) -> Any:
    check_is_fitted(self, "private_head_")
    return self.private_head_

  def _valid_rows(self, rows: Any) -> Any:
    return validate_data(self, rows, reset=False, dtype=_FLOATS)
