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
  """

  owner: str
  backbone: str
  backbone_fingerprint: str
  class_names: tuple[str, ...]

  @classmethod
  def of_cache(cls, owner: object, info: CacheInfo) -> Self:
    """The space of a cache's rows."""
    return cls(
      owner=str(owner),
      backbone=info.backbone.name,
      backbone_fingerprint=info.backbone_fingerprint,
      class_names=info.class_names,
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
      )
    except (KeyError, TypeError) as error:
      raise InputError(
        f"{owner}: its receipt does not say what it was trained on"
        f" ({error!r}); train the head again."
      ) from error

  def check_holds(self, other: Self) -> None:
    """Refuses rows of another space.

    Raises:
      InputError: another backbone, layer or preprocessing, or other classes.
    """
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
