"""Private image classifiers from a frozen public backbone, in one step.

From images in a notebook to embeddings, and from embeddings to a private head
and its receipt:

>>> import numpy as np
>>> import oneshot_dp
>>> images = np.zeros((3, 8, 8, 3), np.uint8)
>>> oneshot_dp.embed_images(images, "random_patches").shape
(3, 256)
>>> embeddings = np.repeat(np.eye(2, dtype=np.float32), 500, axis=0)
>>> head = oneshot_dp.train_head(
...   embeddings,
...   np.repeat([0, 1], 500),
...   num_classes=2,
...   epsilon=2.0,
...   delta=1e-6,
... )
>>> head.predict(embeddings[:3])
array([0, 0, 0])

| stage 1: images → cache | what it is                                        |
|-------------------------|---------------------------------------------------|
| `embed_images`          | images in memory → embeddings                     |
| `backbone_names`        | what there is to embed with                       |
| `load_backbone`         | a backbone with its weights, checked              |
| `Preprocessing`         | from any image to what a backbone is shown        |
| `open_source`           | a TFDS data set, image folder or npz, by index    |
| `Example`               | one labelled image of a source                    |
| `write_cache`           | embeddings and labels in memory → a feature cache |
| `open_cache`            | a cache on disk                                   |
| `FeatureCache`          | its rows, as a stream of blocks                   |
| `CacheInfo`             | what is in it, all public                         |
| `describe`              | the same as a table for a person                  |
| `verify_cache`          | checks every byte and every row                   |

| stage 2: cache → heads  | what it is                                        |
|-------------------------|---------------------------------------------------|
| `train_head`            | embeddings and labels → a private head            |
| `train_heads`           | the same for many ε, at the cost of the largest   |
| `PrivateHead`           | weights and guarantee: `predict`, `receipt`       |
| `save_head`             | such a head → the command line's directory        |
| `load_head`             | back, with its receipt checked                    |
| `LinearHead`            | the weights alone: logits = x·kernel + bias       |
| `evaluate_heads`        | top-1 and top-5 accuracy on public labels         |
| `noise_multiplier`      | (ε, δ) → σ, rounded up                            |
| `epsilon_of`            | (σ, δ) → ε, rounded up                            |
| `composed_epsilon`      | ε of several plans together                       |
| `ReleasePlan`           | which releases there will be, what they cost      |
| `PrivacyStatement`      | what one release guarantees                       |
| `NoiseSource`           | the operating system's random bits, or a seed's   |
| `ArrayRows`             | arrays as the rows that the rest of this reads    |
| `ClippedGradientGrid`   | clipping, and the sensitivity that follows        |
| `exact_clipped_sum`     | the clipped sum of all gradients, a secret        |

With scikit-learn there is also `DPLinearClassifier`, `train_head` by its rules.
Settings are in `oneshot_dp.configs`; whole jobs, ledgers and receipts on disk
are the command line's (`oneshot-dp`). Names are imported when they are first
used, so that `import oneshot_dp` does not wait for JAX, Beam and TFDS.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from oneshot_dp.extract.backbones.registry import (
    backbone_names,
    load_backbone,
  )
  from oneshot_dp.extract.cache.info import CacheInfo
  from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
  from oneshot_dp.extract.cache.summary import describe
  from oneshot_dp.extract.cache.verify import verify_cache
  from oneshot_dp.extract.cache.write_arrays import write_cache
  from oneshot_dp.extract.images.preprocess import Preprocessing
  from oneshot_dp.extract.job.embed_images import embed_images
  from oneshot_dp.extract.sources.example import Example
  from oneshot_dp.extract.sources.open_source import open_source
  from oneshot_dp.linear_dp.accounting.gaussian import (
    epsilon_of,
    noise_multiplier,
  )
  from oneshot_dp.linear_dp.accounting.plan import (
    PrivacyStatement,
    ReleasePlan,
    composed_epsilon,
  )
  from oneshot_dp.linear_dp.head import LinearHead
  from oneshot_dp.linear_dp.noise.source import NoiseSource
  from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
  from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
  from oneshot_dp.linear_dp.private_head import PrivateHead, evaluate_heads
  from oneshot_dp.linear_dp.rows.arrays import ArrayRows
  from oneshot_dp.linear_dp.train_arrays import train_head, train_heads
  from oneshot_dp.pipeline.saved_head.notebook import load_head, save_head

_HOMES = {
  "ArrayRows": "linear_dp.rows.arrays",
  "CacheInfo": "extract.cache.info",
  "ClippedGradientGrid": "linear_dp.one_step.clipping",
  "DPLinearClassifier": "linear_dp.classifier",
  "Example": "extract.sources.example",
  "FeatureCache": "extract.cache.reader",
  "LinearHead": "linear_dp.head",
  "NoiseSource": "linear_dp.noise.source",
  "Preprocessing": "extract.images.preprocess",
  "PrivacyStatement": "linear_dp.accounting.plan",
  "PrivateHead": "linear_dp.private_head",
  "ReleasePlan": "linear_dp.accounting.plan",
  "backbone_names": "extract.backbones.registry",
  "composed_epsilon": "linear_dp.accounting.plan",
  "describe": "extract.cache.summary",
  "embed_images": "extract.job.embed_images",
  "epsilon_of": "linear_dp.accounting.gaussian",
  "evaluate_heads": "linear_dp.private_head",
  "exact_clipped_sum": "linear_dp.one_step.exact_sum",
  "load_head": "pipeline.saved_head.notebook",
  "save_head": "pipeline.saved_head.notebook",
  "load_backbone": "extract.backbones.registry",
  "noise_multiplier": "linear_dp.accounting.gaussian",
  "open_cache": "extract.cache.reader",
  "open_source": "extract.sources.open_source",
  "train_head": "linear_dp.train_arrays",
  "train_heads": "linear_dp.train_arrays",
  "verify_cache": "extract.cache.verify",
  "write_cache": "extract.cache.write_arrays",
}
# Without DPLinearClassifier: `import *` would need scikit-learn.
__all__ = [
  "ArrayRows",
  "CacheInfo",
  "ClippedGradientGrid",
  "Example",
  "FeatureCache",
  "LinearHead",
  "NoiseSource",
  "Preprocessing",
  "PrivacyStatement",
  "PrivateHead",
  "ReleasePlan",
  "backbone_names",
  "composed_epsilon",
  "describe",
  "embed_images",
  "epsilon_of",
  "evaluate_heads",
  "exact_clipped_sum",
  "load_backbone",
  "load_head",
  "noise_multiplier",
  "open_cache",
  "open_source",
  "save_head",
  "train_head",
  "train_heads",
  "verify_cache",
  "write_cache",
]


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module = importlib.import_module(f"oneshot_dp.{_HOMES[name]}")
  return getattr(module, name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
