"""Stage 2: exact clipped sums of cached features into private heads.

From arrays in a notebook to a private head and its receipt:

>>> import numpy as np
>>> import linear_dp
>>> embeddings = np.repeat(np.eye(2, dtype=np.float32), 500, axis=0)
>>> head = linear_dp.train_head(
...   embeddings,
...   np.repeat([0, 1], 500),
...   num_classes=2,
...   epsilon=2.0,
...   delta=1e-6,
... )
>>> head.predict(embeddings[:3])
array([0, 0, 0])

| name                  | what it is                                           |
|-----------------------|------------------------------------------------------|
| `train_head`          | embeddings and labels → a private head               |
| `train_heads`         | the same for many ε, at the cost of the largest      |
| `PrivateHead`         | weights and guarantee: `predict`, `receipt`          |
| `LinearHead`          | the weights alone: logits = x·kernel + bias          |
| `evaluate_heads`      | top-1 and top-5 accuracy on public labels            |
| `noise_multiplier`    | (ε, δ) → σ, rounded up                               |
| `epsilon_of`          | (σ, δ) → ε, rounded up                               |
| `composed_epsilon`    | ε of several plans together                          |
| `ReleasePlan`         | which releases there will be, and what they cost     |
| `PrivacyStatement`    | what one release guarantees                          |
| `NoiseSource`         | the operating system's random bits, or a seed's      |
| `ArrayRows`           | arrays as the rows that the rest of this reads       |
| `ClippedGradientGrid` | clipping, and the sensitivity that follows from it   |
| `exact_clipped_sum`   | the clipped sum of all gradients, which stays secret |

The door through which sums leave is `linear_dp.release.release`. Nothing here
knows files: ledgers, receipts on disk and caches are the command line's
(`oneshot-dp`). Names are imported when they are first used, so that
`import linear_dp` does not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from linear_dp.accounting import epsilon_of, noise_multiplier
  from linear_dp.array_rows import ArrayRows
  from linear_dp.clipping import ClippedGradientGrid
  from linear_dp.evaluate import evaluate_heads
  from linear_dp.exact_sum import exact_clipped_sum
  from linear_dp.head import LinearHead
  from linear_dp.noise_source import NoiseSource
  from linear_dp.plan import PrivacyStatement, ReleasePlan, composed_epsilon
  from linear_dp.private_head import PrivateHead
  from linear_dp.train_arrays import train_head, train_heads

__all__ = [
  "ArrayRows",
  "ClippedGradientGrid",
  "LinearHead",
  "NoiseSource",
  "PrivacyStatement",
  "PrivateHead",
  "ReleasePlan",
  "composed_epsilon",
  "epsilon_of",
  "evaluate_heads",
  "exact_clipped_sum",
  "noise_multiplier",
  "train_head",
  "train_heads",
]

_HOMES = {
  "ArrayRows": "linear_dp.array_rows",
  "ClippedGradientGrid": "linear_dp.clipping",
  "LinearHead": "linear_dp.head",
  "NoiseSource": "linear_dp.noise_source",
  "PrivacyStatement": "linear_dp.plan",
  "PrivateHead": "linear_dp.private_head",
  "ReleasePlan": "linear_dp.plan",
  "composed_epsilon": "linear_dp.plan",
  "epsilon_of": "linear_dp.accounting",
  "evaluate_heads": "linear_dp.evaluate",
  "exact_clipped_sum": "linear_dp.exact_sum",
  "noise_multiplier": "linear_dp.accounting",
  "train_head": "linear_dp.train_arrays",
  "train_heads": "linear_dp.train_arrays",
}


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
