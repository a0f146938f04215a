"""Keys of what is in a row: the same, whatever the row is called.

A row has a key of its embedding and, where it comes from an image, one of the
image's bytes before it. Rows that share a key are one row: under another name,
split, id, label or unit; in float16 and in float32; with the image's key,
through another backbone too. An image that was encoded again, cropped or
changed in one pixel has another key, and so has an embedding that was rounded
to bfloat16 before it came here.

A key tells whoever holds a candidate whether it is among the rows, so keys, and
whatever is made of them, stay with the private data.
"""

import hashlib

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt64

from oneshot_dp.configs.split_part import SplitPart


def image_key(image: bytes | np.ndarray) -> int:
  """128 bits that stand for an image; its views are drawn from them, too.

  *Formal guarantee*: a function of the image alone. Keys made of positions
  would change other rows when an example is removed, and one example must
  move one row only.
  """
  data = image if isinstance(image, bytes) else image.tobytes()
  digest = hashlib.blake2b(data, digest_size=16).digest()
  return int.from_bytes(digest, "little")


def image_keys(keys: list[int]) -> UInt64[np.ndarray, "rows 2"]:
  """What `image_key` gave, as two words each, the low one first."""
  data = b"".join(key.to_bytes(16, "little") for key in keys)
  return np.frombuffer(data, "<u8").reshape(-1, 2)


def embedding_keys(
  embedding: Float[np.ndarray, "rows d"],
) -> UInt64[np.ndarray, "rows 2"]:
  """128 bits for each embedding, of its values rounded to float16.

  So the same features in float16 and in float32 have one key. What float16 does
  not hold (a row with a value over 65,504, or with none but those under 3e-8)
  is hashed in float32. A row of zeros stands for no image: its key is 0, which
  no other row is said to share.
  """
  with np.errstate(over="ignore", under="ignore"):
    half = embedding.astype("<f2", "C")
  bits = half.view("<u2")
  bits[bits == 0x8000] = 0  # -0 is 0
  held = (bits & 0x7C00 != 0x7C00).all(axis=1) & (bits != 0).any(axis=1)
  zero = np.zeros_like(held)
  rows: list[np.ndarray] = list(half)
  for i in np.flatnonzero(~held):
    rows[i] = embedding[i].astype("<f4") + np.float32(0)
    zero[i] = not rows[i].any()
  digests = [
    hashlib.blake2b(row.data, digest_size=16, person=b"embedding").digest()
    for row in rows
  ]
  keys = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2).copy()
  keys[zero] = 0
  return keys


def row_keys(
  embedding: Float[np.ndarray, "rows d"],
  image: UInt64[np.ndarray, "rows 2"] | None,
) -> UInt64[np.ndarray, "rows kinds 2"]:
  """All keys of each row: of its embedding, and of its image if it has one."""
  keys = [embedding_keys(embedding)] + ([] if image is None else [image])
  return np.stack(keys, axis=1)


def percentile_of(
  keys: UInt64[np.ndarray, "rows 2"],
) -> Int64[np.ndarray, " rows"]:
  """A number from 0 to 99 for each key, all about equally often.

  Of the high word, since sketches of rows are of the smallest low words.
  """
  top = (keys[:, 1] >> np.uint64(32)).astype(np.int64)
  return (top * 100) >> 32


def in_part(
  part: SplitPart,
  keys: UInt64[np.ndarray, "rows 2"],
  unit_id: Int64[np.ndarray, " rows"] | None = None,
) -> Bool[np.ndarray, " rows"]:
  """Which rows are in a part, by the keys of their images or embeddings.

  *Formal guarantee*: where rows have units, a function of the `unit_id` alone:
  of the parts of a split that do not meet, a unit has rows in one.
  """
  percentile = percentile_of(keys if unit_id is None else _unit_keys(unit_id))
  return (part.start <= percentile) & (percentile < part.stop)


def _unit_keys(
  unit_id: Int64[np.ndarray, " rows"],
) -> UInt64[np.ndarray, "rows 2"]:
  distinct, place = np.unique(unit_id.astype("<i8"), return_inverse=True)
  digests = [
    hashlib.blake2b(unit.tobytes(), digest_size=16, person=b"unit").digest()
    for unit in distinct
  ]
  return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)[place]


def is_among(
  sorted_words: UInt64[np.ndarray, " known"], words: UInt64[np.ndarray, "..."]
) -> Bool[np.ndarray, "..."]:
  """Which words are among sorted ones; fast where those stay the same."""
  if not len(sorted_words):
    return np.zeros(words.shape, bool)
  place = np.searchsorted(sorted_words, words)
  return sorted_words[np.minimum(place, len(sorted_words) - 1)] == words


def shares_a_key(
  rows: UInt64[np.ndarray, "rows kinds 2"],
  others: UInt64[np.ndarray, "others more_kinds 2"],
) -> Bool[np.ndarray, " rows"]:
  """Which of the rows have a key that one of the others has; private."""
  keys = {tuple(key) for key in others.reshape(-1, 2).tolist()} - {(0, 0)}
  # Most have none: the low words, which compare fast, say which might.
  shared = np.isin(rows[..., 0], others[..., 0])
  shared[shared] = [tuple(key) in keys for key in rows[shared].tolist()]
  return np.logical_or.reduce(shared, axis=1)
