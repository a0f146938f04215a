"""How much memory training takes, from public facts alone."""

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.linear_dp.heads.registry import HEADS

# Measured on Linux with JAX on the CPU.
_PROCESS_BYTES = 450 * 2**20
_BYTES_PER_WEIGHT = 12 * 8
_KEY_BYTES_PER_ROW = 96
_MAX_ROWS_WITH_KEYS = 2**23
_ID_BYTES_PER_ROW = 16
_SHARDS_IN_MEMORY = 24  # of which 4 are read at once
_BYTES_BESIDE_AN_EMBEDDING = 32
_UNIT_BYTES_PER_NUMBER = 18
_UNLABELED_BYTES_PER_NUMBER = 28


def memory_needed(
  head: HeadName,
  *,
  n: int,
  feature_dim: int,
  num_classes: int,
  privacy_unit: str,
  shard_rows: int = 0,
  unlabeled_rows: int = 0,
) -> int:
  """Returns about how many bytes training a head holds at most.

  Args:
    head: the name of the head.
    n: the number of private rows, public.
    feature_dim: d.
    num_classes: K.
    privacy_unit: "example", or the name of a unit that may have many rows.
    shard_rows: rows in a shard of the cache that is read; 0 for arrays.
    unlabeled_rows: public rows that the head teaches on.
  """
  # Each number is public: how much memory is asked for may not tell how many
  # rows a part has, or how many units. Hence n, and not the rows that were
  # read.
  needed = _PROCESS_BYTES
  needed += _BYTES_PER_WEIGHT * num_classes * feature_dim
  # Ids of all rows are compared, to find one that comes twice; keys of rows,
  # which the ledger looks up, are taken in pieces.
  needed += _ID_BYTES_PER_ROW * n
  needed += _KEY_BYTES_PER_ROW * min(n, _MAX_ROWS_WITH_KEYS)
  row_bytes = 4 * feature_dim + _BYTES_BESIDE_AN_EMBEDDING
  needed += _SHARDS_IN_MEMORY * shard_rows * row_bytes
  if privacy_unit != "example":
    # Rows of a unit are gathered, and replaced by a mean row of 8 bytes a
    # number for each of its classes.
    needed += _UNIT_BYTES_PER_NUMBER * n * feature_dim
  # Public rows are held in float32, and at norm 1 and centered in float64.
  needed += _UNLABELED_BYTES_PER_NUMBER * unlabeled_rows * feature_dim
  return needed + HEADS[head].extra_memory(
    n=n,
    feature_dim=feature_dim,
    num_classes=num_classes,
    has_units=privacy_unit != "example",
  )
