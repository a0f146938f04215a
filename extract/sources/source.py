"""What every source of images looks like.

A source is one split of a data set: a frozen dataclass whose fields say what
it consists of, in order. It is opened once, where a job is started; workers
make it again of these fields (`open_source.reopened`). Images come undecoded:
to decode them is work for the job's threads, and what cannot be decoded is
theirs to report, by `where`.
"""

import dataclasses

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from oneshot_dp.configs.errors import escaped
from oneshot_dp.configs.extract_config import EXAMPLE

Image = bytes | UInt8[np.ndarray, "h w c"]
"""The bytes of an image file, or pixels, uint8 [h, w, 3 or 1]."""


# Not comparable: `==` on the image array has no single truth value.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Example:
  """One labelled image: its class index, itself, where it is, and whose.

  `where` is escaped, for errors; `unit_id` is None if the unit is an example.
  """

  label: int
  image: Image
  where: str
  unit_id: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Source:
  """One split of a data set: `source[i]` for i in range(len(source)).

  *Formal guarantees*: `source[i]` is the same example at every run and in every
  process, or an error: InputError where it is no labelled image, RunError where
  it cannot be read any more or is not what was listed. Each example of the
  split is at exactly one index. Any number of threads may read at once.

  Attributes:
    name, split: public names.
    class_names: of label 0, 1, …; public, from the data's names or a flag,
      never from its labels, which are private.
    unit: public name of what `unit_id` numbers; "example" where there is none.
    labels: class index of each example; private, as all that is listed.
    unit_ids: whose each example is; None where the unit is an example.
  """

  name: str
  split: str
  class_names: tuple[str, ...]
  unit: str = EXAMPLE
  labels: Int32[np.ndarray, " n"] | None = None
  unit_ids: Int64[np.ndarray, " n"] | None = None

  def __len__(self) -> int:
    return 0 if self.labels is None else len(self.labels)

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    return Example(
      label=0 if self.labels is None else int(self.labels[index]),
      image=self.image(index),
      where=escaped(self.place(index)),
      unit_id=None if self.unit_ids is None else int(self.unit_ids[index]),
    )

  def image(self, index: int) -> Image:
    """What is there, undecoded."""
    raise NotImplementedError

  def place(self, index: int) -> str:
    """Where it is: a path, FILE[row]."""
    raise NotImplementedError
