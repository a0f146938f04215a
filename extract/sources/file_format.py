"""The contract between a source and the formats of its files."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt8

from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.sources.listed_files import File

ImageData = bytes | UInt8[np.ndarray, "h w c"]
"""The bytes of an image file, or pixels, uint8 [h, w, 3 or 1]."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FileRows:
  """What one file holds: where its images are, and the columns beside them.

  Attributes:
    column: the column, array or extension that has the images.
    locations: of each image two numbers, by which the format's `read_image`
      finds it.
    label_column: what has the labels, for messages.
    class_names: of label 0, 1, …, where the file names the classes.
    labels: of each image; empty where labels were not asked for.
    are_indices: whether integer labels count the classes from 0, whatever the
      classes are called, as a ClassLabel of `datasets` says that they do.
    second_label: a field that states other labels than `label_column`, where no
      flag chose between them; "" mostly.
    units: whose each image is; empty where units were not asked for.
    splits: the values of each column that may say of which split a row is, by
      its name; empty where labels were not asked for.
    other_columns: names of columns beside the image and the label, which may
      say whose each image is; empty where labels were not asked for.
  """

  column: str
  locations: Int64[np.ndarray, "r 2"]
  label_column: str = ""
  class_names: Sequence[Any] = ()
  labels: Sequence[Any] = ()
  are_indices: bool = False
  second_label: str = ""
  units: Sequence[Any] = ()
  splits: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  other_columns: Sequence[str] = ()


@runtime_checkable
class ListRows(Protocol):
  """Lists the rows of a file of one format.

  `labeled` is whether labels are wanted. InputError: the file is damaged, or
  does not hold what the config asks for.
  """

  def __call__(
    self, config: SourceConfig, file: File, *, labeled: bool
  ) -> FileRows: ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Format:
  """How the files of one kind are read; a row of `formats.FORMATS`.

  Attributes:
    name: of the format, for messages.
    suffixes: in lower case, what the names of such files end in.
    is_table: whether a file holds many images, with their labels.
    list_rows: what a file holds; see `ListRows`.
    read_image: one image, undecoded. Its arguments are the file, and of
      `FileRows` the column and the two numbers of the image's location.
      InputError, RunError: it cannot be read any more.
    list_splits: the splits that one file holds in parts of its own; none in
      most formats.
    any_split: whether a file without such parts belongs to whatever split is
      asked for; otherwise its name says to which.
  """

  name: str
  suffixes: tuple[str, ...]
  is_table: bool = True
  list_rows: ListRows
  read_image: Callable[[File, str, int, int], ImageData]
  list_splits: Callable[[File], list[str]] = lambda file: []
  any_split: bool = False
