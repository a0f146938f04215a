"""What a head and a cache must share: embeddings and classes."""

import dataclasses
from typing import Any, Self

from configs.errors import InputError
from extract.feature_cache import CacheInfo


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpace:
  """Where a head works.

  Attributes:
    owner: the head or cache, for errors.
    backbone: name of what makes the embeddings.
    backbone_fingerprint: its weights, layer and preprocessing.
    class_names: of label 0, 1, ….
    cache_fingerprint: the rows: of a cache, or those a head was trained on.
  """

  owner: str
  backbone: str
  backbone_fingerprint: str
  class_names: tuple[str, ...]
  cache_fingerprint: str

  @classmethod
  def of_cache(cls, owner: object, info: CacheInfo) -> Self:
    """The space of a cache's rows."""
    return cls(
      owner=str(owner),
      backbone=info.backbone.name,
      backbone_fingerprint=info.backbone_fingerprint,
      class_names=info.class_names,
      cache_fingerprint=info.fingerprint,
    )

  @classmethod
  def of_receipt(cls, owner: object, receipt: dict[str, Any]) -> Self:
    """The space that a head was trained in.

    Raises:
      InputError: the receipt does not say.
    """
    try:
      data = receipt["data"]
      return cls(
        owner=str(owner),
        backbone=data["backbone"]["name"],
        backbone_fingerprint=data["backbone_fingerprint"],
        class_names=tuple(data["class_names"]),
        cache_fingerprint=data["cache_fingerprint"],
      )
    except (KeyError, TypeError) as error:
      raise InputError(
        f"{owner}: its receipt does not say what it was trained on"
        f" ({error!r}); train the head again."
      ) from error

  def check_evaluates_on(self, other: Self) -> None:
    """Refuses rows of another space, and the private rows themselves.

    Raises:
      InputError: another backbone, layer or preprocessing, or other classes, or
        the rows of the training.
    """
    if self.cache_fingerprint == other.cache_fingerprint:
      raise InputError(
        f"{other.owner} holds the training rows: accuracy on them is an exact"
        " statistic of private labels; give a cache of test images."
      )
    if self.backbone_fingerprint != other.backbone_fingerprint:
      raise InputError(
        f"{self.owner} has embeddings of {self.backbone}"
        f" ({self.backbone_fingerprint[:12]}), {other.owner} of"
        f" {other.backbone} ({other.backbone_fingerprint[:12]}): extract both"
        " with the same backbone, weights and preprocessing."
      )
    if len(self.class_names) != len(other.class_names):
      raise InputError(
        f"{self.owner} has {len(self.class_names)} classes, {other.owner}"
        f" {len(other.class_names)}: they are not of one data set."
      )
    if self.class_names != other.class_names:
      raise InputError(
        f"{self.owner} and {other.owner} name their classes differently, so"
        " labels would mean different things."
      )
