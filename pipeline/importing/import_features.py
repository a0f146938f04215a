"""`oneshot-dp import-features`: a feature cache from an npz of embeddings."""

import os
import pathlib

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT, EmbeddingDtype
from oneshot_dp.extract.cache.identity import BackboneIdentity, CacheIdentity
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.cache.write_arrays import holds_rows, write_rows
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.pipeline.importing.npz_features import (
  check_unit,
  find_class_names,
  read_arrays,
)


def import_features(
  npz_path: str | os.PathLike,
  out_dir: str | os.PathLike,
  *,
  split: str = "train",
  dataset_name: str | None = None,
  num_classes: int | None = None,
  backbone_name: str | None = None,
  unit_name: str | None = None,
  embedding_dtype: EmbeddingDtype | None = None,
  shard_rows: int = 2048,
) -> FeatureCache:
  """Writes the arrays of an npz file as a feature cache.

  The file holds `embedding` float [n, d] and `label` int [n], and may hold
  `example_id` int [n] (default: the row), `unit_id` int [n] and `class_names`
  str [K]. Without `embedding`, `{split}_embedding`, `{split}_label`,
  `{split}_example_id` and `{split}_unit_id` are read.

  *Privacy*: a row is a privacy unit, unless `unit_id` says whose it is. K must
  be public: it is the length of `class_names`, or `num_classes`. With neither,
  the largest label + 1 is taken, which is private, with a warning and a mark in
  the cache.

  An interrupted import starts again from the first row; importing into a
  finished cache checks that it holds these very rows and leaves it as it is.

  Args:
    npz_path: the file.
    out_dir: the cache to write.
    split: public name of the split.
    dataset_name: public name of the data set; None is the file's stem.
    num_classes: K.
    backbone_name: what made the embeddings; a head fits caches with the same
      name and d.
    unit_name: public name of what `unit_id` numbers ("user", "patient").
    embedding_dtype: precision in the cache; None keeps the file's own
      (float32 for float64).
    shard_rows: rows per shard.

  Returns:
    The cache.

  Raises:
    InputError: anything about the file or `out_dir` that is not as above.
    RunError: a full or broken disk.

  Warns:
    UserWarning: K is taken from the labels.
  """
  path = pathlib.Path(npz_path)
  arrays = read_arrays(path, split)
  check_unit(path, arrays, unit_name)
  rows = arrays.rows
  class_names, source = find_class_names(path, arrays, num_classes)
  stored_as = embedding_dtype or (
    "float16" if rows.embedding.dtype == np.float16 else "float32"
  )
  identity = CacheIdentity(
    dataset=dataset_name or path.stem,
    split=split,
    source_num_examples=len(rows),
    feature_dim=rows.embedding.shape[1],
    class_names=class_names,
    num_classes_source=source,
    backbone=BackboneIdentity(name=backbone_name or "imported features"),
    embedding_dtype=stored_as,
    shard_rows=shard_rows,
    privacy_unit=unit_name or EXAMPLE_UNIT,
    id_source=arrays.id_source,
  )
  with step_bar("import", "row", len(rows)) as bar:
    is_new = write_rows(out_dir, identity, rows, bar.update)
  cache = open_cache(out_dir)
  if not is_new:
    with step_bar("compare", "row", len(rows)) as bar:
      if not holds_rows(cache, rows, bar.update):
        raise InputError(
          f"{cache.path} holds other rows than the file; choose another "
          "--out, or delete it to import again."
        )
  return cache
