"""Labels of examples that may be of several classes, or of none."""

import dataclasses

import numpy as np
from jaxtyping import Int32, Int64

from oneshot_dp.configs.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LabelLists:
  """A list of labels for each of consecutive ids.

  Attributes:
    labels: [ids, longest] int32, one row per id: its labels in ascending order,
      each once, then −1.
    first_id: `example_id` of the first row.
  """

  labels: Int32[np.ndarray, "ids longest"]
  first_id: int

  def of(
    self, example_id: Int64[np.ndarray, " rows"]
  ) -> Int32[np.ndarray, "rows longest"]:
    """The lists of some examples; a row of −1 where a list is empty.

    Raises:
      InputError: an id that has no list.
    """
    index = example_id - self.first_id
    outside = (index < 0) | (index >= len(self.labels))
    if outside.any():
      raise InputError(
        f"example_id={example_id[outside][0]} has no list of labels: there are"
        f" {len(self.labels):,} lists, for the ids {self.first_id} to"
        f" {self.first_id + len(self.labels) - 1}."
      )
    return self.labels[index]
