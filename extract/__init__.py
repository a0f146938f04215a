"""Stage 1: images through a frozen backbone into a feature cache.

From images in a notebook to embeddings, and to a cache that the command line
reads:

>>> import numpy as np
>>> import extract
>>> images = np.zeros((3, 8, 8, 3), np.uint8)
>>> extract.embed_images(images, "random_patches").shape
(3, 256)

| name             | what it is                                             |
|------------------|--------------------------------------------------------|
| `embed_images`   | images in memory → embeddings                          |
| `backbone_names` | what there is to embed with                            |
| `load_backbone`  | a backbone with its weights, checked                   |
| `Preprocessing`  | from an image of any size to what a backbone is shown  |
| `open_source`    | a TFDS data set, an image folder or an npz, by index   |
| `Example`        | one labelled image of a source                         |
| `write_cache`    | embeddings and labels in memory → a feature cache      |
| `open_cache`     | a cache on disk                                        |
| `FeatureCache`   | its rows, as a stream of blocks                        |
| `CacheInfo`      | what is in it, all public                              |
| `describe`       | the same as a table for a person                       |
| `verify_cache`   | checks every byte and every row                        |

Settings (`BackboneConfig`, `TfdsSource`, …) are in `configs.schema`; whole jobs
are `oneshot-dp extract`. Names are imported when they are first used, so that
`import extract` does not wait for JAX, Beam and TFDS.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from extract.array_cache import write_cache
  from extract.backbones.registry import backbone_names, load_backbone
  from extract.cache_reader import FeatureCache, open_cache
  from extract.cache_summary import describe
  from extract.cache_verify import verify_cache
  from extract.feature_cache import CacheInfo
  from extract.image_arrays import embed_images
  from extract.preprocess import Preprocessing
  from extract.source import Example, open_source

__all__ = [
  "CacheInfo",
  "Example",
  "FeatureCache",
  "Preprocessing",
  "backbone_names",
  "describe",
  "embed_images",
  "load_backbone",
  "open_cache",
  "open_source",
  "verify_cache",
  "write_cache",
]

_HOMES = {
  "CacheInfo": "extract.feature_cache",
  "Example": "extract.source",
  "FeatureCache": "extract.cache_reader",
  "Preprocessing": "extract.preprocess",
  "backbone_names": "extract.backbones.registry",
  "describe": "extract.cache_summary",
  "embed_images": "extract.image_arrays",
  "load_backbone": "extract.backbones.registry",
  "open_cache": "extract.cache_reader",
  "open_source": "extract.source",
  "verify_cache": "extract.cache_verify",
  "write_cache": "extract.array_cache",
}


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
