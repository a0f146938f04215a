"""Which cache a job makes: known before it runs, and public."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from oneshot_dp.configs.errors import InputError, check_name
from oneshot_dp.configs.extract_config import (
  EXAMPLE_UNIT,
  POSITION_IDS,
  EmbeddingDtype,
  check_unit_name,
)
from oneshot_dp.extract.cache.block import EMBEDDING_DTYPES, BlockCodec

NumClassesSource = Literal["class_names", "flag", "labels (treated as public)"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneIdentity:
  """What made the embeddings.

  `layer` is which embedding of the backbone it is ("cls", "mean" …): the word
  of caches on disk. `code_sha256` is of the Python file, where the backbone is
  the user's own. None is what there is not, or is unknown.
  """

  name: str
  layer: str | None = None
  weights_sha256: str | None = None
  code_sha256: str | None = None
  compute_dtype: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheIdentity:
  """What an extraction job is, before it has run; all of it public.

  Two jobs with the same identity (and batch size, and kind and number of
  devices, which move an embedding by rounding only) write the same bytes.

  Attributes:
    dataset, dataset_version, split: public names of the source.
    source_num_examples: examples in the split; treated as public.
    class_names: one per class, from public metadata, never from the labels.
    preprocess: what the backbone was shown; JSON-able.
    views: what was averaged for each row; None where it is one centre view.
    shard_rows: source examples per shard.
    decoder: what decoded the images; None where nothing was decoded.
    libraries: version of each library that computed the embeddings.
    privacy_unit: public name of what a privacy guarantee is about: "example"
      where that is a row, else what `unit_id` numbers ("user", "patient").
    id_source: public name of what `example_id` was read from: "position" where
      it is the place in the split, and so no name of the example.
    parts_by: "unit" where the split is a part that has whole units; None is a
      split that is no part, or one by what is in each row.
  """

  dataset: str
  split: str
  source_num_examples: int
  feature_dim: int
  class_names: tuple[str, ...]
  num_classes_source: NumClassesSource
  backbone: BackboneIdentity
  embedding_dtype: EmbeddingDtype
  dataset_version: str | None = None
  preprocess: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  views: Mapping[str, Any] | None = None
  shard_rows: int = 2048
  decoder: str | None = None
  libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
  privacy_unit: str = EXAMPLE_UNIT
  id_source: str = POSITION_IDS
  parts_by: Literal["unit"] | None = None

  def __post_init__(self) -> None:
    for field in ("source_num_examples", "feature_dim", "shard_rows"):
      value = getattr(self, field)
      if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{field}={value!r} must be a positive integer.")
    if self.embedding_dtype not in EMBEDDING_DTYPES:
      raise InputError(
        f"embedding_dtype={self.embedding_dtype!r} is not one of "
        f"{', '.join(EMBEDDING_DTYPES)}."
      )
    if self.has_units:
      check_unit_name(self.privacy_unit)
    names = {"dataset": self.dataset, "split": self.split}
    names |= {"backbone": self.backbone.name, "unit": self.privacy_unit}
    for place, name in names.items():
      check_name(place, name)
    for i, name in enumerate(self.class_names):
      check_name(f"class_names[{i}]", name)
    if not self.class_names:
      raise InputError("class_names is empty: a cache needs a class or more.")
    # As JSON reads it back (tuples are lists), so that a job on disk and the
    # same job in memory are equal.
    for field in ("preprocess", "views", "libraries"):
      plain = json.loads(canonical_json(getattr(self, field)))
      object.__setattr__(self, field, plain)

  @property
  def has_units(self) -> bool:
    """Whether rows have a `unit_id`, because a unit may have many."""
    return self.privacy_unit != EXAMPLE_UNIT

  @property
  def num_classes(self) -> int:
    return len(self.class_names)

  @property
  def num_classes_is_public(self) -> bool:
    """False where K was read off the labels, which are private."""
    return self.num_classes_source in ("class_names", "flag")

  @property
  def num_shards(self) -> int:
    return -(-self.source_num_examples // self.shard_rows)

  def shard_range(self, shard_index: int) -> range:
    """Source indices of a shard: contiguous, disjoint, all of them."""
    if not 0 <= shard_index < self.num_shards:
      raise ValueError(
        f"shard_index={shard_index} is not in [0, {self.num_shards})."
      )
    first = shard_index * self.shard_rows
    return range(first, min(first + self.shard_rows, self.source_num_examples))

  @property
  def tfds_name(self) -> str:
    return _identifier(self.dataset, prefix="dataset")

  @property
  def tfds_split(self) -> str:
    return _identifier(self.split, prefix="split")

  def codec(self) -> BlockCodec:
    return BlockCodec(
      self.feature_dim, self.embedding_dtype, has_units=self.has_units
    )

  def shard_name(self, shard_index: int) -> str:
    """What TFDS calls it; to read a cache need not wait for TFDS."""
    name = f"{self.tfds_name}-{self.tfds_split}.array_record"
    digits = max(5, len(str(self.num_shards)))
    return f"{name}-{shard_index:0{digits}}-of-{self.num_shards:0{digits}}"

  @functools.cached_property
  def backbone_fingerprint(self) -> str:
    """SHA-256 over what decides an embedding: a head fits all such caches.

    The storage dtype, the dtype of the products and library versions change an
    embedding by rounding only and are left out. So are views: heads trained on
    means over views are meant for the plain embeddings of test images.
    """
    return embedding_fingerprint(
      self.backbone, self.preprocess, self.feature_dim
    )

  def to_json(self) -> dict[str, Any]:
    data = json.loads(canonical_json(dataclasses.asdict(self)))
    if self.parts_by is None:  # as in caches from before there was a choice
      del data["parts_by"]
    return data


def embedding_fingerprint(
  backbone: BackboneIdentity, preprocess: Mapping[str, Any], feature_dim: int
) -> str:
  """`CacheIdentity.backbone_fingerprint`, of what makes the embeddings."""
  names = "name", "layer", "weights_sha256", "code_sha256"
  return sha256_of(
    {name: getattr(backbone, name) for name in names}
    | {"preprocess": preprocess, "feature_dim": feature_dim}
  )


def refuse_another(
  place: pathlib.Path, there: dict[str, Any], now: dict[str, Any]
) -> None:
  """Refuses a directory of another job; names each field that differs.

  `there` is the identity found in it, `now` the one asked for, as JSON.
  """
  differences = [
    f"{name} is {_short(old)} there and {_short(new)} now"
    for name, old, new in _differences(there, now)
  ]
  if differences:
    raise InputError(
      f"{place} belongs to another job: {'; '.join(differences)}; choose "
      f"another --out, or delete {place} to start again."
    )


def _differences(
  there: Any, now: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
  if isinstance(there, dict) and isinstance(now, dict):
    for key in sorted(there.keys() | now.keys()):
      old, new = there.get(key, "absent"), now.get(key, "absent")
      yield from _differences(old, new, f"{name}.{key}".lstrip("."))
  elif there != now:
    yield name, there, now


def _short(value: Any) -> str:
  text = json.dumps(value)
  return text if len(text) <= 40 else f"{text[:37]}..."


def numbered_class_names(num_classes: int) -> tuple[str, ...]:
  """Names "0" … "K-1" for classes that have none."""
  return tuple(str(i) for i in range(num_classes))


def canonical_json(data: Any) -> str:
  """The one JSON text of a value: sorted keys, no spaces, no NaN."""
  return json.dumps(
    data, sort_keys=True, separators=(",", ":"), allow_nan=False
  )


def sha256_of(data: Any) -> str:
  """SHA-256 of a value's one JSON text, in hexadecimal."""
  return hashlib.sha256(canonical_json(data).encode()).hexdigest()


def _identifier(text: str, *, prefix: str) -> str:
  """A name that TFDS accepts: lower-case ASCII, a letter first."""
  name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
  return name if name[:1].isalpha() else f"{prefix}_{name}".rstrip("_")
