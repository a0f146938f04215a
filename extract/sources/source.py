"""What every source of images is: one listing, made once, read anywhere.

It is opened once, where a job is started; workers make it again of its fields.
Images come undecoded: that is work for the job's threads.
"""

import dataclasses
import os
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import EXAMPLE
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.listed_files import File

Image = bytes | UInt8[np.ndarray, "h w c"]
"""The bytes of an image file, or pixels, uint8 [h, w, 3 or 1]."""


class Example(NamedTuple):
  """One labelled image: class index, itself, and whose it is.

  `unit_id` is None where the privacy unit is an example.
  """

  label: int
  image: Image
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
    labels: class index of each example; private, as all that follows.
    unit_ids: whose each example is; None where the unit is an example.
    root: the folder that paths are relative to, or "".
    files: in order, with their sizes (bytes) and versions.
    columns: of each file the column or array of its images, or "" where its
      bytes are.
    at: of each example its file; then start and bytes in it, of Parquet row
      group and row, of an npz row and 0.
  """

  name: str
  split: str
  class_names: tuple[str, ...]
  unit: str = EXAMPLE
  labels: Int32[np.ndarray, " n"]
  unit_ids: Int64[np.ndarray, " n"] | None = None
  root: str = ""
  files: tuple[File, ...]
  columns: tuple[str, ...]
  at: Int64[np.ndarray, "_ 3"]

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    unit_id = None if self.unit_ids is None else int(self.unit_ids[index])
    return Example(int(self.labels[index]), self.image(index), unit_id)

  def image(self, index: int) -> Image:
    """What is there, undecoded."""
    number, first, second = self.at[index].tolist()
    column, (path, *state) = self.columns[number], self.files[number]
    file = File(os.path.join(self.root, path), *state)
    if not column:
      return listed_files.read(file, first, second)
    try:
      if file.path.lower().endswith(".npz"):
        from oneshot_dp.extract.sources.archives import read_array

        return read_array(file, column)[first]
      from oneshot_dp.extract.sources.parquet import read_cell

      return read_cell(file, column, first, second)
    except InputError as error:
      raise RunError(f"cannot be read any more: {error}") from error

  def name_of(self, index: int) -> str:
    """Where it is, by the names of files: a path, or FILE[row]."""
    number = self.at[index, 0]
    row = index - np.searchsorted(self.at[:, 0], number)
    path = os.path.join(self.root, self.files[number].path)
    return f"{path}[{row}]" if listed_files.is_table(path) else path

  def display_path(self, index: int) -> str:
    """The same for an error's line, escaped."""
    return escaped(self.name_of(index), but="")
