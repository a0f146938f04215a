"""What a receipt says of the public rows that private ones were centred by."""

import dataclasses
from typing import Annotated, Any, Self

import msgspec

from oneshot_dp.configs.head_config import PublicUse
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp.public_statistics import RIDGE

SETTING = "public_statistics"
"""Its name among the settings of a head."""
ASSUMPTION = (
  "The rows of the public cache, whose mean or covariance the private rows were"
  " mapped by, are public and share nothing with the private data."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicRecord:
  """A public cache, by its public metadata, and what was taken from it."""

  dataset: str
  dataset_version: str | None
  split: str
  num_examples: Annotated[int, msgspec.Meta(ge=1)]
  cache_fingerprint: str
  used: PublicUse

  @classmethod
  def of(cls, info: CacheInfo, used: PublicUse) -> Self:
    """The record of a cache."""
    return cls(
      dataset=info.dataset,
      dataset_version=info.dataset_version,
      split=info.split,
      num_examples=info.public_num_examples,
      cache_fingerprint=info.fingerprint,
      used=used,
    )

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters; a ValueError says that it is no record."""
    return msgspec.convert(section, cls)

  @property
  def whitens(self) -> bool:
    """Whether the covariance was used."""
    return self.used == "mean-and-covariance"

  def is_of(self, dataset: str) -> bool:
    """Whether the rows are of a data set, by its name."""
    return self.dataset.casefold() == dataset.casefold()

  def as_json(self) -> dict[str, Any]:
    """The receipt's section about it, with what follows from the rest."""
    rule = f"{RIDGE:g} times the mean variance of a feature"
    return dataclasses.asdict(self) | {"ridge": rule if self.whitens else None}

  def in_words(self) -> str:
    """For people."""
    done = "centred and whitened" if self.whitens else "centred"
    return (
      f"embeddings {done} by the {self.used.replace('-', ' ')} of the"
      f" {self.num_examples:,} public rows of {self.dataset}, split"
      f" `{self.split}`; the head is for embeddings as they are"
    )
