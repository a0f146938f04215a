"""The feature cache's format: its files, its rows, and what says what they are.

    CACHE/
      NAME-SPLIT.array_record-00003-of-00016   blocks of up to 256 rows
      cache_info.json    what the rows are, and the SHA-256 of each shard; the
                         last file: a directory that has it is a cache
      dataset_info.json, features.json   it is a TFDS data set as well

A record is a `tf.Example` of one block, which TFDS, Grain and array_record read
with no code of ours; beside the columns it has the digest of the job that made
it. All but `CacheInfo.public` is as private as the images.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import tempfile
from collections.abc import Mapping
from typing import Any, Literal

import ml_dtypes
import msgspec
import numpy as np
from jaxtyping import Shaped, UInt64

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  EmbeddingDtype,
  NumClassesSource,
  check_unit_name,
)

FORMAT_VERSION = 3
INFO_FILE = "cache_info.json"
BLOCK_ROWS = 256
"""One record per row would read at a tenth of the speed of the disk."""
_MOST_SHARD_ROWS = 1 << 16
DTYPES: dict[str, np.dtype] = {
  "float16": np.dtype(np.float16),
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
Rows = dict[str, Shaped[np.ndarray, "..."]]
"""Columns by name: embedding [r, d], embedding_norm f32 [r], label i32 [r],
example_id i64 [r], image_key u64 [r, 2], and unit_id i64 [r] where a privacy
unit may have many rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
  """What the metadata says of a shard; private."""

  file: str
  rows: int
  blocks: int
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheInfo:
  """What a cache is: known before its job runs and public, but for `shards`.

  Attributes:
    dataset, split: public names.
    source_num_examples: n, public: what was skipped counts as a row of nothing.
    class_names: from public metadata, never from the labels.
    num_classes_source: where K is from; the last makes it NOT PRIVATE.
    backbone: `Backbone.identity`: what decides an embedding but its rounding.
    computed_by: what decides its rounding: dtype of the products, libraries.
    views: what was averaged for each row; None is one centre view.
    shard_rows: source examples per shard.
    unit: what a guarantee is about: "example", or what `unit_id` numbers.
    id_source: what `example_id` is: "position" in the split.
    keys: what `image_key` is of; the embedding, if that was imported.
    shards: private; empty until the job has ended.
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
  id_source: str = "position"
  keys: Literal["image", "embedding"] = "image"
  format_version: int = FORMAT_VERSION
  shards: tuple[Shard, ...] = ()

  def __post_init__(self):
    for field in ("source_num_examples", "feature_dim", "shard_rows"):
      if (value := getattr(self, field)) < 1:
        raise InputError(f"{field}={value!r} must be a positive integer.")
    if self.shard_rows > _MOST_SHARD_ROWS:  # one is in memory as a whole
      raise InputError(
        f"shard_rows={self.shard_rows}: {_MOST_SHARD_ROWS} at most."
      )
    if self.has_units:
      check_unit_name(self.unit)
    check_name("dataset", self.dataset)
    check_name("split", self.split)
    check_name("backbone", self.backbone.get("name"))
    for name in self.class_names:
      check_name("class_names", name)
    if not self.class_names:
      raise InputError("class_names is empty: a cache needs a class or more.")
    # As JSON reads it back: one on disk and one in memory are equal.
    for field in ("backbone", "computed_by", "views"):
      plain = json.loads(_canonical(getattr(self, field)))
      object.__setattr__(self, field, plain)

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
    """Source indices of a shard: contiguous, disjoint, all of them."""
    first = index * self.shard_rows
    return range(first, min(first + self.shard_rows, self.source_num_examples))

  @property
  def tfds_names(self) -> tuple[str, str]:
    """What TFDS calls data set and split; its `all` is all those it has."""
    split = _identifier(self.split, "split")
    split = "all_of_it" if split == "all" else split
    return _identifier(self.dataset, "dataset"), split

  def shard_name(self, index: int) -> str:
    """What TFDS calls it."""
    name = f"{'-'.join(self.tfds_names)}.array_record"
    digits = max(5, len(str(self.num_shards)))
    return f"{name}-{index:0{digits}}-of-{self.num_shards:0{digits}}"

  def columns(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Dtype of each column of `Rows`, and shape of one row of it."""
    f32, i32, i64, u64 = map(np.dtype, ("<f4", "<i4", "<i8", "<u8"))
    columns: dict[str, tuple[Any, tuple[int, ...]]] = {
      "embedding": (DTYPES[self.embedding_dtype], (self.feature_dim,)),
      "embedding_norm": (f32, ()),
      "label": (i32, ()),
      "example_id": (i64, ()),
      "image_key": (u64, (2,)),
    }
    return columns | ({"unit_id": (i64, ())} if self.has_units else {})

  def public(self) -> dict[str, Any]:
    """What may be published, as JSON."""
    data = json.loads(_canonical(dataclasses.asdict(self)))
    del data["shards"]
    return data

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 of the public metadata; goes into receipts.

    *Formal guarantee*: a function of public metadata only. A hash of the rows
    would let whoever holds a candidate data set test if it is the one.
    """
    return sha256_of(self.public())

  @functools.cached_property
  def backbone_fingerprint(self) -> str:
    """SHA-256 of what decides an embedding: a head fits all such caches.

    What changes it by rounding only is left out. So are views: heads trained
    on means over views are meant for the plain embeddings of test images.
    """
    return sha256_of([self.backbone, self.feature_dim])

  def to_json(self) -> bytes:
    """The text of `cache_info.json`; private, as it has the shards."""
    data = json.loads(_canonical(dataclasses.asdict(self)))
    data["fingerprint"] = self.fingerprint
    return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"

  @classmethod
  def from_json(cls, data: bytes, place: str) -> "CacheInfo":
    """Reads `to_json`'s text; InputError: damaged, edited, another version."""
    try:
      found = msgspec.json.decode(data, type=dict[str, Any])
      if (version := found.get("format_version")) != FORMAT_VERSION:
        raise ValueError(f"format {version!r}, not {FORMAT_VERSION}")
      fingerprint = found.pop("fingerprint", None)
      info = msgspec.convert(found, cls)
      names = [info.shard_name(i) for i in range(len(info.shards))]
      shown = [shard.file for shard in info.shards], len(names)
      if info.fingerprint != fingerprint or shown != (names, info.num_shards):
        raise ValueError("its parts do not fit each other")
    except (ValueError, RecursionError) as e:
      raise InputError(
        f"{place} is damaged ({ascii(str(e))[1:200]}); restore it, or make the"
        " cache again."
      ) from e
    return info


def image_key(image: bytes | np.ndarray) -> UInt64[np.ndarray, "2"]:
  """128 bits that stand for an image; its views are drawn from them, too.

  *Formal guarantee*: a function of the image alone.
  """
  data = image if isinstance(image, bytes) else image.tobytes()
  digest = hashlib.blake2b(data, digest_size=16).digest()
  return np.frombuffer(digest, "<u8")


def tfds_files(info: CacheInfo) -> dict[str, bytes]:
  """The metadata files of TFDS, to which a block is an example."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import dataset_info

  tensor = functools.partial(tfds.features.Tensor, encoding="bytes")
  features = {
    name: tensor(shape=(None, *shape), dtype=dtype.type)
    for name, (dtype, shape) in info.columns().items()
  }
  name, split = info.tfds_names
  builder = dataset_info.DatasetIdentity(
    name=name, version=tfds.core.Version("1.0.0"), data_dir="", module_name=""
  )
  described = tfds.core.DatasetInfo(
    builder=builder, features=tfds.features.FeaturesDict(features)
  )
  described.set_file_format("array_record")
  of_split = tfds.core.SplitInfo(
    name=split,
    shard_lengths=[shard.blocks for shard in info.shards],
    num_bytes=sum(shard.bytes for shard in info.shards),
    filename_template=tfds.core.ShardedFileTemplate(
      data_dir="",
      dataset_name=name,
      split=split,
      filetype_suffix="array_record",
    ),
  )
  described.set_splits(tfds.core.SplitDict([of_split]))
  # It writes to folders only; of mode 0700, as bytes and blocks are private.
  with tempfile.TemporaryDirectory() as folder:
    described.write_to_directory(folder)
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}


def _canonical(data: Any) -> str:
  """The one JSON text of a value."""
  separators = (",", ":")
  return json.dumps(
    data, sort_keys=True, separators=separators, allow_nan=False
  )


def sha256_of(data: Any) -> str:
  """SHA-256 of a value's one JSON text, in hexadecimal."""
  return hashlib.sha256(_canonical(data).encode()).hexdigest()


def _identifier(text: str, prefix: str) -> str:
  """A name that TFDS accepts: lower-case ASCII, a letter first."""
  name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:100]
  return name if name[:1].isalpha() else f"{prefix}_{name}".rstrip("_")
