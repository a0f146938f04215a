"""What a head and a cache must share, and what not: embeddings, and rows."""

import dataclasses
import re
from typing import Any, Self

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.info import CacheInfo

_PART = re.compile(
  r"(?P<base>[^\[\]+]+?)"
  r"(?:\[(?P<start>\d*)(?P<start_unit>%?):(?P<stop>\d*)(?P<stop_unit>%?)\])?"
)
_END = 2**62


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpace:
  """Where a head works.

  Attributes:
    owner: the head or cache, for errors.
    backbone: name of what makes the embeddings.
    backbone_fingerprint: of its weights, embedding and preprocessing.
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
    """The space that a head was trained in, by its `Receipt`."""
    data = receipt["data"]
    return cls(
      owner=str(owner),
      backbone=data["backbone"]["name"],
      backbone_fingerprint=data["backbone_fingerprint"],
      class_names=tuple(data["class_names"]),
      rows=(data["dataset"], data["split"]),
    )

  def check_evaluates_on(self, other: Self) -> None:
    """Refuses rows of another space, and the private rows themselves.

    InputError: another backbone, embedding or preprocessing, or other classes,
    or the rows of the training.
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
    """Refuses another backbone, embedding or preprocessing."""
    if self.backbone_fingerprint != other.backbone_fingerprint:
      raise InputError(
        f"{self.owner} has embeddings of {self.backbone}"
        f" ({self.backbone_fingerprint[:12]}), {other.owner} of"
        f" {other.backbone} ({other.backbone_fingerprint[:12]}): extract both"
        " with the same backbone, weights and preprocessing."
      )


def may_overlap(one: str, other: str) -> bool:
  """False only where the names say that no row is in both.

  Splits are named as in TFDS: `train`, `train[:10%]`, `train[1000:2000]`,
  `train+test`. Two parts of one base are apart if both are cut in percent, or
  both in rows, and do not meet. Anything that is not understood may overlap,
  and so may whatever is called `all`.

  >>> may_overlap("train", "test"), may_overlap("train", "train[:10%]")
  (False, True)
  >>> may_overlap("train[:80%]", "train[80%:]")
  False
  """
  mine, theirs = (
    [_PART.fullmatch(part.strip()) for part in split.split("+")]
    for split in (one, other)
  )
  return any(_meet(a, b) for a in mine for b in theirs)


def _meet(one: re.Match[str] | None, other: re.Match[str] | None) -> bool:
  if one is None or other is None:
    return True
  if one["base"] != other["base"]:
    return "all" in (one["base"], other["base"])
  units = {
    part[f"{side}_unit"]
    for part in (one, other)
    for side in ("start", "stop")
    if part[side]
  }
  start = max(int(part["start"] or 0) for part in (one, other))
  stop = min(int(part["stop"] or _END) for part in (one, other))
  return len(units) > 1 or start < stop
