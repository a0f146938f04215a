"""A source of images: one listing, made once, that any process can read.

A source is opened where a job is started. Workers make it again from its
fields. Images come undecoded: to decode them is work for the job's threads.
"""

import dataclasses
import os
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from oneshot_dp.configs.errors import escaped
from oneshot_dp.configs.extract_config import EXAMPLE
from oneshot_dp.extract.sources.file_format import ImageData
from oneshot_dp.extract.sources.formats import format_of
from oneshot_dp.extract.sources.listed_files import File


class Example(NamedTuple):
  """One labeled image.

  Attributes:
    label: class index, from 0.
    image: the bytes of its file, or its pixels, uint8 [h, w, 3 or 1].
    unit_id: the number of the privacy unit that owns it; None where the unit is
      an example.
  """

  label: int
  image: ImageData
  unit_id: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Source:
  """One split of a data set: `source[i]` for i in range(len(source)).

  *Formal guarantees*: `source[i]` is the same example at every run and in every
  process, or an error: InputError where it is not a labeled image, RunError
  where it cannot be read any more or is not what was listed. Each example of
  the split is at exactly one index. Any number of threads may read at once.

  Attributes:
    name, split: public names.
    class_names: of label 0, 1, …; public, from the data's names or a flag,
      never from its labels, which are private.
    unit: public name of what `unit_id` numbers; "example" where there is none,
      "distinct image" where it follows from the image.
    labels: class index of each example; private, as all that follows.
    unit_ids: whose each example is; None where nothing says it.
    root: the folder that paths are relative to, or "".
    files: in order, with their sizes (bytes) and versions.
    columns: of each file the column or array of its images, or "" where the
      images are bytes of the file itself.
    locations: of each example the number of its file, then the two numbers by
      which the file's format finds it: start and size in bytes of an image file
      or a member of a tar, row group and row of Parquet, row and 0 of an npz.
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
  locations: Int64[np.ndarray, "_ 3"]

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    unit_id = None if self.unit_ids is None else int(self.unit_ids[index])
    return Example(int(self.labels[index]), self.image(index), unit_id)

  def image(self, index: int) -> ImageData:
    """The image of an example, undecoded."""
    number, first, second = self.locations[index].tolist()
    listed = self.files[number]
    file = listed._replace(path=os.path.join(self.root, listed.path))
    kind = format_of(file.path)
    return kind.read_image(file, self.columns[number], first, second)

  def place_of(self, index: int) -> tuple[str, str, int, int]:
    """Where the image of an example is: in whatever split, it is one place.

    Returns:
      The path of the file, the column, and the two numbers of the location.
    """
    number, first, second = self.locations[index].tolist()
    path = os.path.join(self.root, self.files[number].path)
    return path, self.columns[number], first, second

  def name_of(self, index: int) -> str:
    """Where an example is, by the names of files: a path, or FILE[row]."""
    number = self.locations[index, 0]
    path = os.path.join(self.root, self.files[number].path)
    if not format_of(path).is_table:
      return path
    first_row = np.searchsorted(self.locations[:, 0], number)
    return f"{path}[{index - first_row}]"

  def display_path(self, index: int) -> str:
    """The same for an error's line, with control characters escaped."""
    return escaped(self.name_of(index), but="")
