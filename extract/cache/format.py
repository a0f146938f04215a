"""The format of a feature cache: its files, its rows and its metadata.

    CACHE/
      NAME-SPLIT.array_record-00003-of-00016   blocks of up to 256 rows
      cache_info.json    the metadata and the SHA-256 of each shard; written
                         last, so a directory that has it is a finished cache
      dataset_info.json, features.json   make it a TFDS data set as well

A record is a `tf.Example` that holds one block of rows, so TFDS, Grain and
array_record read a cache without any code of this package. Beside the columns
each record holds the digest of the job that made it. Everything here is as
private as the images, except what `CacheInfo.public` returns.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
from jaxtyping import Shaped

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  MAX_OWNERS,
  EmbeddingDtype,
  NumClassesSource,
  check_unit,
  has_several_owners,
)

FORMAT_VERSION = 3
INFO_FILE = "cache_info.json"
BLOCK_ROWS = 256
"""One record per row would read at a tenth of the speed of the disk."""
# A shard is in memory as a whole where it is made.
_MAX_SHARD_ROWS = 1 << 16
_MAX_REASON_CHARACTERS = 200
DTYPES: dict[str, np.dtype] = {
  "float16": np.dtype(np.float16),
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
Rows = dict[str, Shaped[np.ndarray, "..."]]
"""Columns by name: embedding [r, d], embedding_norm f32 [r], label i32 [r],
example_id i64 [r], image_key u64 [r, 2], and unit_id i64 [r] where a unit may
have many rows. Where a row may belong to several units, unit_id is [r, m], and
weight_divisor u32 [r] is the number of rows of the largest of them."""


class Column(NamedTuple):
  """Dtype of a column of `Rows`, and the shape of one row of it."""

  dtype: np.dtype
  shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
  """What the metadata record about one shard; private.

  Attributes:
    file: its name in the directory.
    rows: how many rows it holds, at most `CacheInfo.shard_rows`.
    blocks: how many records hold them.
    bytes: the size of the file.
    sha256: SHA-256 of the file, in hexadecimal.
  """

  file: str
  rows: int
  blocks: int
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheInfo:
  """The metadata of a cache: public and known before its job, except `shards`.

  Attributes:
    dataset: public name of the data set.
    split: public name of the split.
    source_num_examples: n, public. An image that was skipped still counts.
    feature_dim: d, the dimension of an embedding.
    class_names: all K classes, from public metadata, never from the labels.
    backbone: `Backbone.identity`: all that decides an embedding, except how it
      is rounded.
    num_classes_source: where K comes from. "labels (treated as public)" makes
      whatever is trained on the cache NOT PRIVATE.
    computed_by: what decides how embeddings are rounded: the dtype of matrix
      products, the versions of libraries.
    views: how many random views each embedding is a mean over; None: each is
      that of the center of its image.
    embedding_dtype: the dtype that embeddings are stored in.
    shard_rows: source examples per shard.
    unit: the privacy unit: "example", or the name of what `unit_id` numbers.
    owners_per_row: how many units a row may belong to; public (`FIXED_GRAPH`).
    id_source: what `example_id` is: "position" in the split.
    keys: what `image_key` is a hash of: the image, or an import's embedding.
    format_version: `FORMAT_VERSION`; no other is read.
    shards: private; empty until the job has finished.

  Raises:
    InputError: a value is out of range, or a name cannot be printed.
  """

  dataset: str
  split: str
  source_num_examples: int
  feature_dim: int
  class_names: tuple[str, ...]
  backbone: Mapping[str, Any]
  num_classes_source: NumClassesSource = "class_names"
  computed_by: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  views: Mapping[str, Any] | None = None
  embedding_dtype: EmbeddingDtype = "float16"
  shard_rows: int = 2048
  unit: str = EXAMPLE
  owners_per_row: int = 1
  id_source: str = "position"
  keys: Literal["image", "embedding"] = "image"
  format_version: int = FORMAT_VERSION
  shards: tuple[Shard, ...] = ()

  def __post_init__(self):
    # Metadata may come from a file that anybody wrote: sizes bound what is
    # allocated for it, names are printed.
    sizes = {
      "source_num_examples": self.source_num_examples,
      "feature_dim": self.feature_dim,
      "shard_rows": self.shard_rows,
      "owners_per_row": self.owners_per_row,
    }
    for field, size in sizes.items():
      if size < 1:
        raise InputError(f"{field}={size!r} must be a positive integer.")
    if self.shard_rows > _MAX_SHARD_ROWS:
      raise InputError(
        f"shard_rows={self.shard_rows} must be at most {_MAX_SHARD_ROWS}."
      )
    check_unit(self.unit)
    has_room_for_several = 1 < self.owners_per_row <= MAX_OWNERS
    if has_several_owners(self.unit) != has_room_for_several:
      raise InputError(
        f"owners_per_row={self.owners_per_row} does not fit unit={self.unit!r}."
      )
    check_name("dataset", self.dataset)
    check_name("split", self.split)
    check_backbone(self.backbone)
    for name in self.class_names:
      check_name("class_names", name)
    if not self.class_names:
      raise InputError("class_names is empty: a cache needs a class or more.")
    # A caller may give tuples, which JSON reads back as lists: metadata in
    # memory and metadata from a disk must be equal.
    object.__setattr__(self, "backbone", _as_json_reads_it(self.backbone))
    object.__setattr__(self, "computed_by", _as_json_reads_it(self.computed_by))
    object.__setattr__(self, "views", _as_json_reads_it(self.views))

  @property
  def num_classes(self) -> int:
    return len(self.class_names)

  @property
  def has_units(self) -> bool:
    """Whether rows have a `unit_id`, because a unit may have many."""
    return self.unit != EXAMPLE

  @property
  def num_shards(self) -> int:
    return -(-self.source_num_examples // self.shard_rows)

  def shard_range(self, index: int) -> range:
    """Source indices of a shard: contiguous, disjoint, and all of them."""
    first = index * self.shard_rows
    return range(first, min(first + self.shard_rows, self.source_num_examples))

  @property
  def tfds_names(self) -> tuple[str, str]:
    """Names of data set and split in TFDS, which keeps `all` for itself."""
    split = _tfds_identifier(self.split, "split")
    if split == "all":
      split = "all_of_it"
    return _tfds_identifier(self.dataset, "dataset"), split

  def shard_name(self, index: int) -> str:
    """The file name of a shard, as TFDS writes it."""
    dataset, split = self.tfds_names
    # As many digits in all names, so that sorted names are in the order of the
    # shards.
    digits = max(5, len(str(self.num_shards)))
    number = f"{index:0{digits}}-of-{self.num_shards:0{digits}}"
    return f"{dataset}-{split}.array_record-{number}"

  def columns(self) -> dict[str, Column]:
    """The columns of the cache's rows, by name."""
    columns = {
      "embedding": Column(DTYPES[self.embedding_dtype], (self.feature_dim,)),
      "embedding_norm": Column(np.dtype("<f4"), ()),
      "label": Column(np.dtype("<i4"), ()),
      "example_id": Column(np.dtype("<i8"), ()),
      "image_key": Column(np.dtype("<u8"), (2,)),
    }
    if self.owners_per_row > 1:
      columns["unit_id"] = Column(np.dtype("<i8"), (self.owners_per_row,))
      columns["weight_divisor"] = Column(np.dtype("<u4"), ())
    elif self.has_units:
      columns["unit_id"] = Column(np.dtype("<i8"), ())
    return columns

  def public(self) -> dict[str, Any]:
    """The metadata that may be published, as JSON."""
    data = self._fields()
    del data["shards"]
    return data

  def _fields(self) -> dict[str, Any]:
    """All fields, as JSON reads them."""
    data = _as_json_reads_it(dataclasses.asdict(self))
    # Caches that were made before this field existed keep their fingerprints.
    if self.owners_per_row == 1:
      del data["owners_per_row"]
    return data

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 of the public metadata; receipts name a cache by it.

    *Formal guarantee*: a function of public metadata only. A hash of the rows
    would let whoever holds a candidate data set test if it is the one.
    """
    return sha256_of(self.public())

  @functools.cached_property
  def backbone_fingerprint(self) -> str:
    """SHA-256 of what decides an embedding: a head fits all such caches.

    What changes an embedding by rounding only is left out. So are views: heads
    trained on means over views are meant for the plain embeddings of test
    images.
    """
    return sha256_of([self.backbone, self.feature_dim])

  def to_json(self) -> bytes:
    """The content of `cache_info.json`; private, as it lists the shards."""
    data = self._fields()
    data["fingerprint"] = self.fingerprint
    return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"

  @classmethod
  def from_json(cls, data: bytes, place: str) -> "CacheInfo":
    """Reads what `to_json` wrote.

    Args:
      data: the content of the file.
      place: the file's path or URL, for messages.

    Returns:
      Metadata whose parts agree with each other.

    Raises:
      InputError: the file is damaged, edited, or of another format version.
    """
    try:
      # The version first: fields of another version would be called damage.
      fields = msgspec.json.decode(data, type=dict[str, Any])
      version = fields.get("format_version")
      if version != FORMAT_VERSION:
        raise ValueError(f"format {version!r}, not {FORMAT_VERSION}")
      fingerprint = fields.pop("fingerprint", None)
      info = msgspec.convert(fields, cls)
      _check_parts(info, fingerprint)
    except (ValueError, RecursionError) as e:
      reason = ascii(str(e))[1:_MAX_REASON_CHARACTERS]
      raise InputError(
        f"{place} is damaged ({reason}); restore it, or make the cache again."
      ) from e
    return info


def check_backbone(backbone: Mapping[str, Any]) -> None:
  """Raises InputError unless a backbone's name and layer can be printed."""
  check_name("backbone", backbone.get("name"))
  layer = backbone.get("layer")  # of an import there is none
  if layer is not None:
    check_name("layer", layer)


def _check_parts(info: CacheInfo, fingerprint: Any) -> None:
  """Raises ValueError unless fingerprint and shards are those of the rest."""
  files = [shard.file for shard in info.shards]
  expected = [info.shard_name(index) for index in range(len(files))]
  is_complete = len(files) == info.num_shards
  if info.fingerprint != fingerprint or files != expected or not is_complete:
    raise ValueError("its parts do not fit each other")


def check_views(
  head: str,
  trained_views: Mapping[str, Any] | None,
  cache: str,
  views: Mapping[str, Any] | None,
) -> None:
  """Refuses a cache of means over views for a head of plain embeddings.

  Random views are crops, and their means lie elsewhere than embeddings of whole
  images, so that such a head is often wrong on them. A head of means is meant
  for plain embeddings, and fits means as well.

  Args:
    head: names the head, for the message.
    trained_views: `CacheInfo.views` of the rows that the head is trained on.
    cache: names the cache that the head is applied to.
    views: `CacheInfo.views` of that cache.

  Raises:
    InputError: the cache holds means over views, and the head's rows were none.
  """
  if trained_views is None and views is not None:
    count = views.get("count", "several")  # the metadata may be anybody's
    raise InputError(
      f"{cache} holds means over {count} random views of each image,"
      f" and {head} knows embeddings of whole images alone: extract the images"
      " again without --views."
    )


def sha256_of(data: Any) -> str:
  """SHA-256 of a value's canonical JSON text, in hexadecimal."""
  return hashlib.sha256(_canonical_json(data).encode()).hexdigest()


def _canonical_json(data: Any) -> str:
  """The one JSON text of a value: sorted keys, no spaces, no NaN."""
  return json.dumps(
    data, sort_keys=True, separators=(",", ":"), allow_nan=False
  )


def _as_json_reads_it(data: Any) -> Any:
  """A value as it comes back from JSON: tuples are lists, keys are strings."""
  return json.loads(_canonical_json(data))


def _tfds_identifier(text: str, prefix: str) -> str:
  """A name that TFDS accepts: lower-case ASCII, beginning with a letter."""
  name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:100]
  if name[:1].isalpha():
    return name
  return f"{prefix}_{name}".rstrip("_")
