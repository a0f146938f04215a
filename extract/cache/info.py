"""The feature cache's format: what is in it and what its files are called.

A cache is a directory for one split of one data set. Its shards are ArrayRecord
files (`cache.block` is one record of them), and TensorFlow Datasets reads it
with no code of ours. `cache_info.json` says what the rows are and makes the
directory a cache: it is written last. `shards.json` lists the shards.
Nothing in either depends on the labels. Beside each shard is a private file of
the keys of its rows (`content_keys`); caches of format 1 have none.
"""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.split_part import SplitPart
from oneshot_dp.extract.cache.identity import CacheIdentity, sha256_of

FORMAT_VERSION = 2
_READABLE = (1, FORMAT_VERSION)
INFO_FILE = "cache_info.json"
SHARDS_FILE = "shards.json"
INCOMPLETE_DIR = "_incomplete"
LISTING_SHA256 = "source_listing_sha256"
"""In `shards.json`, which is private: of all that the source consists of."""
_TFDS_FILES = ("dataset_info.json", "features.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheInfo(CacheIdentity):
  """A finished cache: the identity, and how the job came out.

  >>> from oneshot_dp.extract.cache.identity import BackboneIdentity
  >>> info = CacheInfo(
  ...   dataset="pets",
  ...   split="train",
  ...   source_num_examples=100,
  ...   num_examples=100,
  ...   feature_dim=192,
  ...   class_names=("cat", "dog"),
  ...   num_classes_source="class_names",
  ...   backbone=BackboneIdentity(name="vit_ti16", layer="cls"),
  ...   embedding_dtype="float16",
  ... )
  >>> info.num_classes, info.privacy_unit, info.num_shards
  (2, 'example', 1)

  Attributes:
    num_examples: rows in the cache; private, as is which were skipped.
    skipped_example_ids: sorted ids of the examples that were left out because
      they could not be decoded; with those outside the part of the split, if
      it is one, num_examples + skipped = source_num_examples.
    format_version: of its files; in 1 rows had no keys.
  """

  num_examples: int
  skipped_example_ids: tuple[int, ...] = ()
  format_version: int = FORMAT_VERSION

  @property
  def public_num_examples(self) -> int:
    """n, as everybody may know it: a function of the split's size and name.

    What was skipped counts as a row that adds nothing, and so does what is
    outside a part, which has as many rows as it has on average. So a row's own
    bytes, which decide that, move nothing but the rows.
    """
    return self._part.mean_of(self.source_num_examples)

  @property
  def is_part(self) -> bool:
    """Whether n is the mean of a number that depends on the rows."""
    return not self._part.is_whole

  @property
  def _part(self) -> SplitPart:
    try:
      return SplitPart.of(self.split)
    except InputError:  # a name of a split that is no part
      return SplitPart(split=self.split)

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 over the public identity of the cache.

    *Formal guarantee*: a function of public metadata only. It goes into
    receipts, which leave; a hash of the embeddings, labels or ids (or of
    which examples could not be decoded) would let whoever holds a candidate
    data set test if it is the one, and must never enter here.
    """
    return self._fingerprint(self.public_num_examples)

  def _fingerprint(self, num_examples: int) -> str:
    enters = (
      *("dataset", "dataset_version", "split"),
      *("source_num_examples", "feature_dim", "class_names"),
      *("backbone_fingerprint", "views", "embedding_dtype", "privacy_unit"),
    )
    return sha256_of(
      {"format_version": 1}  # in which what enters was laid down
      | {"num_examples": num_examples}
      | {name: getattr(self, name) for name in enters}
      | ({} if self.parts_by is None else {"parts_by": self.parts_by})
    )

  @classmethod
  def of(
    cls,
    identity: CacheIdentity,
    *,
    num_examples: int,
    skipped_example_ids: tuple[int, ...],
  ) -> Self:
    return cls(
      **{
        f.name: getattr(identity, f.name) for f in dataclasses.fields(identity)
      },
      num_examples=num_examples,
      skipped_example_ids=skipped_example_ids,
    )

  def to_json(self) -> dict[str, Any]:
    return super().to_json() | {
      "num_classes": self.num_classes,
      "backbone_fingerprint": self.backbone_fingerprint,
      # Stays with the rows, and so is of their exact number.
      "fingerprint": self._fingerprint(self.num_examples),
    }

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> Self:
    """Reads `to_json`'s output; refuses other versions and edited files."""
    if data.get("format_version") not in _READABLE:
      raise InputError(
        f"format_version={data.get('format_version')!r} is not supported, "
        f"this version reads {' and '.join(map(str, _READABLE))}; extract the"
        " cache again."
      )
    try:
      info = msgspec.convert(data, cls)
    except ValueError as e:
      raise InputError(f"field missing or malformed ({e}).") from e
    if info.to_json() != data:
      raise InputError(
        "the fingerprints do not fit the other fields: the file was edited; "
        "restore it or extract the cache again."
      )
    return info


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardRecord:
  """What `shards.json` says of a shard; stays with the private data.

  Attributes:
    first_index: the first source index of the shard's fixed range.
    skipped_example_ids: sorted ids of the range that are not in the shard.
    outside: examples of the range that are outside the part of the split.
    keys_sha256: of the file of the rows' keys; None in format 1.
  """

  file: str
  first_index: int
  rows: int
  blocks: int
  bytes: int
  sha256: str
  skipped_example_ids: tuple[int, ...] = ()
  outside: int = 0
  keys_sha256: str | None = None

  @property
  def keys_file(self) -> str:
    """Name of the file of the rows' keys."""
    return self.file.replace(".array_record-", ".content_keys-")


def tfds_metadata(
  identity: CacheIdentity, shards: Sequence[ShardRecord]
) -> dict[str, str]:
  """The text of each metadata file of TFDS, to which a block is an example."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import dataset_info

  legal = tfds.core.Version.is_valid(identity.dataset_version)
  info = tfds.core.DatasetInfo(
    builder=dataset_info.DatasetIdentity(
      name=identity.tfds_name,
      version=tfds.core.Version(identity.dataset_version if legal else "1.0.0"),
      data_dir="",
      module_name="",
    ),
    features=identity.codec().features,
  )
  info.set_file_format("array_record")
  info.set_splits(
    tfds.core.SplitDict(
      [
        tfds.core.SplitInfo(
          name=identity.tfds_split,
          shard_lengths=[shard.blocks for shard in shards],
          num_bytes=sum(shard.bytes for shard in shards),
          filename_template=tfds.core.ShardedFileTemplate(
            data_dir="",
            dataset_name=identity.tfds_name,
            split=identity.tfds_split,
            filetype_suffix="array_record",
          ),
        )
      ]
    )
  )
  # TFDS writes to directories only. This one is of mode 0700: a part's bytes
  # and blocks are private, as its rows are.
  with tempfile.TemporaryDirectory() as scratch:
    info.write_to_directory(scratch)
    return {
      name: pathlib.Path(scratch, name).read_text("utf-8")
      for name in _TFDS_FILES
    }
