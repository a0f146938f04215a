"""What may be published of a feature cache, and what its owner is told."""

from collections.abc import Mapping
from typing import Any

from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.progress import counted


def public_metadata(cache: FeatureCache) -> dict[str, Any]:
  """What may be published of a cache; JSON-able, a function of no row.

  n is the public one; which examples were left out, how many, and how many
  bytes the others take are not said.
  """
  data = cache.info.to_json()
  del data["skipped_example_ids"]
  return data | {
    "num_examples": cache.info.public_num_examples,
    "fingerprint": cache.info.fingerprint,
    "num_shards": len(cache.shards),
  }


def owners_metadata(cache: FeatureCache) -> dict[str, Any]:
  """The same with exact counts, for the owner; no label statistics."""
  return public_metadata(cache) | {
    "num_rows": len(cache),
    "num_skipped": len(cache.info.skipped_example_ids),
    "bytes": sum(shard.bytes for shard in cache.shards),
  }


def describe(cache: FeatureCache) -> str:
  """`owners_metadata` as a table for a person.

  >>> import tempfile
  >>> import numpy as np
  >>> import oneshot_dp
  >>> arrays = np.eye(4, dtype=np.float16), np.array([0, 1, 1, 0])
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   cache = oneshot_dp.write_cache(
  ...     f"{folder}/pets", *arrays, dataset="pets", num_classes=2
  ...   )
  >>> print(describe(cache))
  data set              pets, split train
  examples              4 of 4 (0 skipped)
  features              4 x float16
  classes               2 (from flag)
  ...

  Args:
    cache: any cache.

  Returns:
    A line for each fact, without any label statistics.
  """
  info, data = cache.info, owners_metadata(cache)

  def listed(values: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{k}={v}" for k, v in (values or {}).items()) or "-"

  names = ", ".join(info.class_names[:8])
  more = f", … ({info.num_classes} in all)" if info.num_classes > 8 else ""
  version = f" {info.dataset_version}" if info.dataset_version else ""
  rows = {
    "data set": f"{info.dataset}{version}, split {info.split}",
    "examples": f"{info.num_examples:,} of {info.source_num_examples:,}"
    f" ({data['num_skipped']} skipped)",
    "features": f"{info.feature_dim} x {info.embedding_dtype}",
    "classes": f"{info.num_classes} (from {info.num_classes_source})",
    "class names": names + more,
    "backbone": f"{info.backbone.name}, embedding {info.backbone.layer or '-'}",
    "weights SHA-256": info.backbone.weights_sha256 or "-",
    "compute dtype": info.backbone.compute_dtype or "-",
    "preprocessing": listed(info.preprocess),
    "views": listed(info.views),
    "decoder": info.decoder or "-",
    "libraries": ", ".join(f"{k} {v}" for k, v in info.libraries.items())
    or "-",
    "privacy unit": info.privacy_unit,
    "example ids": info.id_source,
    "size": f"{data['bytes']:,} bytes in {counted(len(cache.shards), 'shard')}",
    "backbone fingerprint": info.backbone_fingerprint,
    "fingerprint": info.fingerprint,
  }
  width = max(map(len, rows))
  return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
