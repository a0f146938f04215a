"""What a head and a cache must share: embeddings and classes."""

import dataclasses
from typing import Any, Self

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.pipeline.saved_head.split_overlap import may_overlap


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpace:
  """Where a head works.

  Attributes:
    owner: the head or cache, for errors.
    backbone: name of what makes the embeddings.
    backbone_fingerprint: its weights, embedding and preprocessing.
    class_names: of label 0, 1, ….
    rows: data set and split of a cache, or that a head was trained on. (Not a
      fingerprint: the same images have several, with views or in another
      dtype.)
  """

  owner: str
  backbone: str
  backbone_fingerprint: str
  class_names: tuple[str, ...]
  rows: tuple[str, str]

  @classmethod
  def of_cache(cls, owner: object, info: CacheInfo) -> Self:
    """The space of a cache's rows."""
    return cls(
      owner=str(owner),
      backbone=info.backbone.name,
      backbone_fingerprint=info.backbone_fingerprint,
      class_names=info.class_names,
      rows=(info.dataset, info.split),
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
        rows=(data["dataset"], data["split"]),
      )
    except (KeyError, TypeError) as error:
      raise InputError(
        f"{owner}: its receipt does not say what it was trained on"
        f" ({error!r}); train the head again."
      ) from error

  def check_evaluates_on(self, other: Self) -> None:
    """Refuses rows of another space, and the private rows themselves.

    Raises:
      InputError: another backbone, embedding or preprocessing, or other
        classes, or the rows of the training.
    """
    (dataset, split), (other_dataset, other_split) = self.rows, other.rows
    if dataset == other_dataset and may_overlap(split, other_split):
      raise InputError(
        f"{other.owner} (split {other_split}) may hold training rows"
        f" ({dataset}, split {split}): accuracy on them is an exact statistic"
        " of private labels; give a cache of test images, a split of its own."
      )
    self.check_same_embeddings(other)
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

  def check_same_embeddings(self, other: Self) -> None:
    """Refuses embeddings of another space, whatever their classes.

    Raises:
      InputError: another backbone, embedding or preprocessing.
    """
    if self.backbone_fingerprint != other.backbone_fingerprint:
      raise InputError(
        f"{self.owner} has embeddings of {self.backbone}"
        f" ({self.backbone_fingerprint[:12]}), {other.owner} of"
        f" {other.backbone} ({other.backbone_fingerprint[:12]}): extract both"
        " with the same backbone, weights and preprocessing."
      )
