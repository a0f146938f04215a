"""One record of the feature cache: a block of rows."""

import dataclasses
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, Int64

from oneshot_dp.configs.extract_config import EmbeddingDtype

# One record per row would read at a tenth of the speed of the disk; a block of
# 256 rows of 1,280 float16 is 0.7 MB.
BLOCK_ROWS = 256

EMBEDDING_DTYPES: dict[str, np.dtype] = {
  "float16": np.dtype(np.float16),
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  """Rows of the cache, as read: zero-copy, read-only.

  Attributes:
    embedding: in the cache's precision.
    embedding_norm: L2 norm of `embedding`; see `stored_norm`.
    label: private; in [0, K).
    example_id: the source's id of each row.
    unit_id: private; whose each row is, where the privacy unit is coarser than
      an example, else None.
  """

  embedding: Float[np.ndarray, "rows d"]
  embedding_norm: Float32[np.ndarray, " rows"]
  label: Int32[np.ndarray, " rows"]
  example_id: Int64[np.ndarray, " rows"]
  unit_id: Int64[np.ndarray, " rows"] | None = None

  def __len__(self) -> int:
    return len(self.label)


def columns(rows: Any) -> dict[str, np.ndarray]:
  """The arrays of a `Block` or of `Rows` by name; absent units are left out."""
  return {name: a for name, a in vars(rows).items() if a is not None}


_RowsT = TypeVar("_RowsT")


def cut(rows: _RowsT, part: slice | Bool[np.ndarray, " rows"]) -> _RowsT:
  """A part of a `Block` or of `Rows`; of a slice, views of the same arrays."""
  return type(rows)(**{name: a[part] for name, a in columns(rows).items()})


class BlockCodec:
  """Blocks to records, which are `tf.Example`s of TFDS, and back."""

  def __init__(
    self,
    feature_dim: int,
    embedding_dtype: EmbeddingDtype,
    *,
    has_units: bool = False,
  ):
    self._shape = (feature_dim,)
    self._dtypes = {
      "embedding": EMBEDDING_DTYPES[embedding_dtype],
      "embedding_norm": np.dtype(np.float32),
      "label": np.dtype(np.int32),
      "example_id": np.dtype(np.int64),
    } | ({"unit_id": np.dtype(np.int64)} if has_units else {})
    # Here: whoever asks only what is in a cache need not wait for TFDS.
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import example_serializer
    from tensorflow_datasets.proto import tf_example_pb2

    self._parsed = tf_example_pb2.Example.FromString
    self.features = tfds.features.FeaturesDict(
      {
        name: tfds.features.Tensor(
          shape=(None, *(self._shape if name == "embedding" else ())),
          dtype=dtype.type,
          encoding="bytes",
        )
        for name, dtype in self._dtypes.items()
      }
    )
    self._serializer = example_serializer.ExampleSerializer(
      self.features.get_serialized_info()
    )

  def encode(self, block: Block) -> bytes:
    """One record; the same bytes in every process.

    (`features.serialize_example` is not: protobuf orders the map of features
    by a hash that is seeded anew in each process.)
    """
    example = self.features.encode_example(columns(block))
    proto = self._serializer.get_tf_example(example)
    return proto.SerializeToString(deterministic=True)

  def decode(self, record: bytes) -> Block:
    """The block of one record, its arrays views of the parsed bytes.

    (What `features.deserialize_example_np` gives, in half the time.)
    ValueError: not a block of this shape; the message holds no data.
    """
    try:
      features = self._parsed(record).features.feature
      arrays = {
        name: np.frombuffer(features[name].bytes_list.value[0], dtype)
        for name, dtype in self._dtypes.items()
      }
      arrays["embedding"] = arrays["embedding"].reshape(-1, *self._shape)
    except Exception as e:
      raise ValueError(f"not a block of rows ({type(e).__name__})") from None
    if len({len(array) for array in arrays.values()}) > 1:
      raise ValueError("its arrays do not have the same number of rows")
    return Block(**arrays)


def stored_norm(
  embedding: Float[np.ndarray, "rows d"],
) -> Float32[np.ndarray, " rows"]:
  """L2 norm of each row as stored, the same bits on every machine.

  ‖x‖ = float32(√Σ x²), in float64 and rounded once; relative error under 2⁻²³
  (over 2⁻¹²⁶, float32's least normal number). The sum halves the row again and
  again with elementwise additions, because the order in which numpy's own
  reductions add depends on the width of the CPU's vectors.
  """
  total = embedding.astype(np.float64)
  np.multiply(total, total, out=total)
  width = total.shape[1]
  while width > 1:
    half = width // 2
    total[:, :half] += total[:, width - half : width]
    width -= half
  with np.errstate(over="ignore"):
    return np.sqrt(total[:, 0]).astype(np.float32)
