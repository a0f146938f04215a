"""Private image classifiers from a frozen public backbone, in one step.

| stage 1: images → cache | what it is                                        |
|-------------------------|---------------------------------------------------|
| `embed_images`          | images in memory → embeddings                     |
| `backbone_names`        | what there is to embed with                       |
| `load_backbone`         | a backbone with its weights, checked              |
| `open_source`           | images of a folder, npz, table, tars or TFDS      |
| `Example`               | one labeled image of a source                     |
| `write_cache`           | rows in memory → a feature cache                  |
| `open_cache`            | a cache on disk, or a part of it                  |

| stage 2: cache → heads  | what it is                                        |
|-------------------------|---------------------------------------------------|
| `train_head`            | embeddings and labels → a private head            |
| `train_heads`           | the same for many ε, at the cost of the largest   |
| `PrivateHead`           | weights and guarantee: `predict`, `receipt`       |
| `save_head`             | such a head → the command line's folder           |
| `load_head`             | back, with its receipt checked                    |
| `LinearHead`            | the weights alone: logits = x·kernel + bias       |
| `evaluate_heads`        | accuracies on public labels                       |
| `noise_multiplier`      | (ε, δ) → σ, rounded up                            |
| `mu_squared_from_epsilon` | (ε, δ) → μ², which adds up, rounded down        |
| `epsilon_of`            | (μ², δ) → ε, rounded up                           |
| `NoiseSource`           | the operating system's random bits, or a seed's   |
| `disable_core_dumps`    | a crash leaves nothing of this process's memory   |

With scikit-learn there is also `DPLinearClassifier`, `train_head` by its rules.
Whole jobs and the ledger are the command line's (`oneshot-dp`). Names are
imported when first used: `import oneshot_dp` does not wait for JAX or Beam.
"""

# ruff: noqa: F401
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from oneshot_dp.extract.backbones.backbone import load_backbone
  from oneshot_dp.extract.backbones.names import backbone_names
  from oneshot_dp.extract.cache.read import open_cache
  from oneshot_dp.extract.cache.write import write_cache
  from oneshot_dp.extract.files import disable_core_dumps
  from oneshot_dp.extract.job.shard import embed_images
  from oneshot_dp.extract.sources.open_source import open_source
  from oneshot_dp.extract.sources.source import Example
  from oneshot_dp.linear_dp.accounting import (
    epsilon_of,
    mu_squared_from_epsilon,
    noise_multiplier,
  )
  from oneshot_dp.linear_dp.api import train_head, train_heads
  from oneshot_dp.linear_dp.evaluate import evaluate_heads
  from oneshot_dp.linear_dp.heads.linear_head import LinearHead
  from oneshot_dp.linear_dp.noise import NoiseSource
  from oneshot_dp.linear_dp.private_head import PrivateHead
  from oneshot_dp.pipeline.heads.head_folder import load_head, save_head

# Public name -> the module that defines it.
_HOMES = {
  "Example": "extract.sources.source",
  "LinearHead": "linear_dp.heads.linear_head",
  "NoiseSource": "linear_dp.noise",
  "PrivateHead": "linear_dp.private_head",
  "backbone_names": "extract.backbones.names",
  "disable_core_dumps": "extract.files",
  "embed_images": "extract.job.shard",
  "epsilon_of": "linear_dp.accounting",
  "evaluate_heads": "linear_dp.evaluate",
  "load_backbone": "extract.backbones.backbone",
  "load_head": "pipeline.heads.head_folder",
  "mu_squared_from_epsilon": "linear_dp.accounting",
  "noise_multiplier": "linear_dp.accounting",
  "open_cache": "extract.cache.read",
  "open_source": "extract.sources.open_source",
  "save_head": "pipeline.heads.head_folder",
  "train_head": "linear_dp.api",
  "train_heads": "linear_dp.api",
  "write_cache": "extract.cache.write",
}
__all__ = sorted(_HOMES)  # pyrefly: ignore

# Not in __all__, since `import *` would then need scikit-learn.
_HOMES["DPLinearClassifier"] = "linear_dp.classifier"


def __getattr__(name: str) -> Any:
  if name == "__version__":
    from importlib import metadata  # it imports the whole of `email`

    return metadata.version("oneshot-dp")
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module = importlib.import_module(f"oneshot_dp.{_HOMES[name]}")
  return getattr(module, name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__, "__version__"})
