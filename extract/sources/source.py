"""A source of images: one listing, made once, that any process can read.

A source is opened where a job is started. Workers make it again from its
fields. Images come undecoded: to decode them is work for the job's threads.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt32

from oneshot_dp.configs.errors import escaped
from oneshot_dp.configs.extract_config import EXAMPLE, NumClassesSource
from oneshot_dp.extract.file_table import FileTable
from oneshot_dp.extract.sources.file_format import ImageData
from oneshot_dp.extract.sources.formats import format_of
from oneshot_dp.extract.sources.listed_files import File


class Example(NamedTuple):
  """One labeled image.

  Attributes:
    label: class index, from 0.
    image: the bytes of its file, or its pixels, uint8 [h, w, 3 or 1].
    unit_id: the number of the privacy unit that owns it, or the numbers of all
      that do; None where the unit is an example.
    weight_divisor: where several units may own it, how many examples the
      largest of its owners has.
  """

  label: int
  image: ImageData
  unit_id: int | list[int] | None = None
  weight_divisor: int | None = None


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
    num_classes_source: where the classes are known from; "labels (treated as
      public)" where the classes are those of the images that exist.
    unit: public name of what `unit_id` numbers; "example" where there is none,
      "distinct image" where it follows from the image.
    labels: class index of each example; private, like all that follows.
    unit_ids: the unit that owns each example, [n]; or its up to m owners,
      [n, m]; None where owners are not known.
    weight_divisors: for each example, the number of examples of the largest
      unit that owns it; None where each example has one owner.
    root: the folder that paths are relative to, or "".
    files: in order, with their sizes (bytes) and versions.
    columns: for each file, the column or array of its images, or "" where the
      images are bytes of the file itself; empty if that holds for all files.
    locations: for each example, the number of its file and the two numbers by
      which the file's format finds it: start and size in bytes of an image file
      or a member of a tar, row group and row of Parquet, row and 0 of an npz;
      None where example i is all of file i.
    first_index: index of the first example in these arrays, where a process
      knows only a part of the source; examples keep their indices.
    first_row: row of the first example in these arrays, in its file.
  """

  IS_LISTED: ClassVar[bool] = True
  """Whether an example is found by its entry in the listing, or else by its
  index alone."""

  name: str
  split: str
  class_names: tuple[str, ...]
  num_classes_source: NumClassesSource = "class_names"
  unit: str = EXAMPLE
  labels: Int32[np.ndarray, " n"]
  unit_ids: Int64[np.ndarray, "n *m"] | None = None
  weight_divisors: UInt32[np.ndarray, " n"] | None = None
  root: str = ""
  files: Sequence[File]
  columns: tuple[str, ...]
  locations: Int64[np.ndarray, "_ 3"] | None
  first_index: int = 0
  first_row: int = 0

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, index: int) -> Example:
    place = self._place(index)
    unit_id = None
    if self.unit_ids is not None:
      unit_id = self.unit_ids[place].tolist()
    divisor = None
    if self.weight_divisors is not None:
      divisor = int(self.weight_divisors[place])
    label = int(self.labels[place])
    return Example(label, self.image(index), unit_id, divisor)

  @property
  def owners_per_row(self) -> int:
    """How many units an example may belong to."""
    if self.unit_ids is None or self.unit_ids.ndim == 1:
      return 1
    return self.unit_ids.shape[1]

  def _place(self, index: int) -> int:
    """The place of an example in the arrays."""
    place = index - self.first_index
    if not 0 <= place < len(self):
      raise IndexError(
        f"{index} is not in [{self.first_index},"
        f" {self.first_index + len(self)})."
      )
    return place

  def locations_of(
    self, start: int, stop: int
  ) -> Int64[np.ndarray, " count 3"]:
    """`locations` of examples by their places in the arrays, start to stop.

    Args:
      start: the first place, from 0.
      stop: behind the last; places that the source does not have are left out.

    Returns:
      [count, 3]. Where example i is all of file i, they are that file's number,
      0 and its size, so that both kinds of sources can be read alike.
    """
    if self.locations is not None:
      return self.locations[start:stop]
    numbers = np.arange(start, min(stop, len(self)))
    if isinstance(self.files, FileTable):
      # Without the names, which would be read and decoded once more.
      sizes = self.files.sizes[start:stop]
    else:
      sizes = [file.size for file in self.files[start:stop]]
    return np.stack([numbers, np.zeros_like(numbers), sizes], axis=1)

  def _locate(self, place: int) -> tuple[int, str, int, int]:
    """The number of an example's file, its column, and its location there."""
    if self.locations is None:
      return place, "", 0, self.files[place].size
    number, first, second = self.locations[place].tolist()
    column = self.columns[number] if self.columns else ""
    return number, column, first, second

  def image(self, index: int) -> ImageData:
    """The image of an example, undecoded."""
    number, column, first, second = self._locate(self._place(index))
    # A file is opened anew for each image, so that threads and processes share
    # a source freely. Formats keep what is worth keeping.
    listed = self.files[number]
    file = listed._replace(path=os.path.join(self.root, listed.path))
    return format_of(file.path).read_image(file, column, first, second)

  def place_of(self, index: int) -> tuple[str, str, int, int]:
    """Where the image of an example lies, the same in all splits that have it.

    Returns:
      The path of the file, the column, and the two numbers of the location.
    """
    number, column, first, second = self._locate(self._place(index))
    path = os.path.join(self.root, self.files[number].path)
    return path, column, first, second

  def name_of(self, index: int) -> str:
    """Where an example is, by the names of files: a path, or FILE[row].

    Args:
      index: of the example in the whole source.

    Raises:
      IndexError: the example is not in the part that this process knows.
    """
    place = self._place(index)
    number = place
    if self.locations is not None:
      number = int(self.locations[place, 0])
    path = os.path.join(self.root, self.files[number].path)
    if self.locations is None or not format_of(path).is_table:
      return path
    # Rows of a file lie together, in the order of its own rows, so that the
    # first of them is found by bisection. A process that knows a part of the
    # listing may know the first file of it from a later row on.
    row = place - np.searchsorted(self.locations[:, 0], number)
    if number == self.locations[0, 0]:
      row += self.first_row
    return f"{path}[{row}]"

  def display_path(self, index: int) -> str:
    """`name_of` for an error message, with control characters escaped."""
    return escaped(self.name_of(index), but="")
