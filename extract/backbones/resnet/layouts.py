"""What the names of its arrays tell of a file of weights: family and depth."""

import re
from collections.abc import Iterable

from oneshot_dp.configs.errors import InputError

# The first that matches wins.
_SIGNS = (
  (r"standardized_conv2d|stages\.\d+\.(blocks|layers)\.\d+\.norm3\.", "a BiT"),
  (r"Block_1Conv_0_0", "a WRN"),
  (r"skipinit_gain", "an NFNet"),
  (r"stages\.\d+\.\d+\.conv1\.gain", "an NF-ResNet"),
  (r"running_mean", "a network with batch normalisation"),
  (r"attention|attn\.|MultiHeadDotProduct", "a transformer"),
)


def family(names: Iterable[str]) -> str | None:
  """With its article, for instance "an NFNet"; None if it cannot be told."""
  names = list(names)
  for sign, what in _SIGNS:
    if any(re.search(sign, name) for name in names):
      return what
  return None


def depths(names: Iterable[str]) -> tuple[int, ...]:
  """Blocks of each stage, from our names of parameters."""
  found = (re.match(r"stage(\d+)_block(\d+)/", name) for name in names)
  last: dict[int, int] = {}
  for stage, block in sorted((int(m[1]), int(m[2])) for m in found if m):
    last[stage] = block
  return tuple(last.values())


def refuse_another(found: str | None, wanted: str, path: str) -> None:
  """Refuses a file that is recognisably of another network."""
  if found and found != wanted:
    raise InputError(
      f"{path}: the weights look like {found}, not {wanted}: give the weights"
      " or the backbone.name of the other."
    )
