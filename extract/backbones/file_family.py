"""What network a file of weights belongs to, by the names of its arrays."""

import re
from collections.abc import Iterable

# The first that matches wins.
_SIGNS = (
  (r"standardized_conv2d|stages\.\d+\.(blocks|layers)\.\d+\.norm3\.", "a BiT"),
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
