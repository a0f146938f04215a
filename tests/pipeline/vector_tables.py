"""Files of embeddings as other programs write them, and caches made of them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oneshot_dp.extract.cache.read import open_cache

N = 300
D = 12
K = 3


def vectors(dtype=np.float32):
  """The usual embeddings [N, D], and labels [N] of K classes."""
  rng = np.random.default_rng(0)
  embedding = rng.normal(size=(N, D)).astype(dtype)
  label = rng.integers(0, K, N)
  return embedding, label


def npz(path, **changes):
  """Writes an npz of the usual vectors, but for what is changed."""
  embedding, label = vectors()
  arrays: dict = {"embedding": embedding, "label": label} | changes
  np.savez(path, **arrays)
  return path


def parquet(path, embedding, label, **others):
  """Writes a Parquet file of these columns."""
  table = pa.table({"embedding": embedding, "label": label, **others})
  pq.write_table(table, path)
  return path


def with_class_label(table, class_names):
  """The table, with classes as `datasets` notes them in its metadata."""
  features = {"label": {"names": list(class_names), "_type": "ClassLabel"}}
  noted = json.dumps({"info": {"features": features}})
  return table.replace_schema_metadata({b"huggingface": noted})


def write_parquet_split(folder, name, label, class_names=()):
  """A small Parquet file, with a ClassLabel of the class names, if any."""
  folder.mkdir(parents=True, exist_ok=True)
  rows = np.random.default_rng(len(name)).normal(size=(len(label), D))
  table = pa.table({"embedding": rows.tolist(), "label": label})
  if class_names:
    table = with_class_label(table, class_names)
  pq.write_table(table, folder / name)


def rows_of(path):
  """All rows of a cache, by the names of its columns."""
  blocks = list(open_cache(str(path)).blocks())
  rows = {}
  for name in blocks[0]:
    rows[name] = np.concatenate([np.asarray(block[name]) for block in blocks])
  return rows
