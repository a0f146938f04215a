"""A TensorFlow Datasets data set, read without TensorFlow: tfds:NAME.

TFDS prepares, describes and stores the data; of a record only the image and the
label are parsed, and the image stays the bytes of its file. tfds:FOLDER is one
that is prepared, by its folder.
"""

import bisect
import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from jaxtyping import Int32

from oneshot_dp.configs.errors import (
  InputError,
  RunError,
  check_name,
  check_num_classes,
  one_line,
)
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  SourceConfig,
  check_unit_name,
)
from oneshot_dp.extract.sources.annotations.labels import (
  class_names,
  resolve_choice,
  warn_of_unusual_label,
)
from oneshot_dp.extract.sources.annotations.owner_names import (
  check_unused_owners,
)
from oneshot_dp.extract.sources.annotations.split_columns import (
  warn_of_unread_splits,
)
from oneshot_dp.extract.sources.listed_files import File, readable_as
from oneshot_dp.extract.sources.source import Example, Source
from oneshot_dp.extract.sources.tfds.record_chunks import check_chunks
from oneshot_dp.extract.sources.tfds.tfds_safety import check_metadata

_SHOWN_CHARACTERS = 300
_ARRAY_RECORD = tfds.core.FileFormat.ARRAY_RECORD
_F = tfds.features


def unread_labels(num_examples: int) -> Int32[np.ndarray, " n"]:
  """Zeros, which take no memory, for labels that are read with the images."""
  return np.broadcast_to(np.int32(0), num_examples)


class _Opened(NamedTuple):
  """A split as one process reads it.

  Attributes:
    records: TFDS's own list of the records of all files.
    features: what parses a record.
    decoders: what leaves an image the bytes of its file.
    paths: of the files.
    ends: the index behind the last example of each file.
  """

  records: Any
  features: Any
  decoders: Any
  paths: list[str]
  ends: list[int]


class Tfds(Source):
  """A split of a TFDS data set, in the order of its ArrayRecord files.

  Labels and units are read with the images: the length of `labels` says how
  many examples there are. `columns` are the features of image, label and, where
  there is one, unit; `root` is the folder of the prepared data set.
  """

  IS_LISTED = False

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    # Records are opened once in each process: what reads them cannot travel.
    opened = self._opened
    file_index = bisect.bisect_right(opened.ends, index)
    try:
      check_chunks(opened.paths[file_index], self.files[file_index].size)
      record = opened.records[index]
    except (OSError, RuntimeError) as error:
      raise RunError(
        f"{self.display_path(index)} cannot be read: {one_line(error)}."
      ) from error
    image_key, label_key, *unit_keys = self.columns
    with readable_as(self.display_path(index), "example of TFDS"):
      row = opened.features.deserialize_example_np(
        record, decoders=opened.decoders
      )
      # A record may lack what the metadata say that it has.
      missing = [key for key in self.columns if row[key] is None]
      if missing:
        raise ValueError(f"it has no {missing[0]!r}")
      label = int(row[label_key])
    if not 0 <= label < len(self.class_names):
      raise InputError(
        f"{self.display_path(index)} has a label that is none of its"
        f" {len(self.class_names)} classes: TFDS marks unlabeled examples so,"
        " choose another split."
      )
    unit_id = int(row[unit_keys[0]]) if unit_keys else None
    return Example(label, row[image_key], unit_id)

  def name_of(self, index: int) -> str:
    """Where an example is: NAME/SPLIT[index]."""
    return f"{self.name}/{self.split}[{index}]"

  def open(self) -> None:
    """Opens the records in this process, before any is asked for.

    RunError: they are not those that were listed.
    """
    _ = self._opened

  @functools.cached_property
  def _opened(self) -> "_Opened":
    """The records, and what parses them, in this process."""
    builder = _prepared_builder(self.root, None)
    # Workers open the data set by themselves, and it may be another one there.
    if _files_of(builder, self.split) != self.files:
      raise RunError(
        f"{self.name}, {self.split}, is not here what it was where the job was"
        " started: give every worker the same files."
      )
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    records = builder.as_data_source(
      self.split, deserialize_method=raw, file_format=_ARRAY_RECORD
    )
    features = {key: builder.info.features[key] for key in self.columns}
    parts = builder.info.splits[self.split].file_instructions
    return _Opened(
      records=records,
      features=_F.FeaturesDict(features),
      decoders={self.columns[0]: tfds.decode.SkipDecoding()},
      paths=[os.fspath(part.filename) for part in parts],
      ends=list(itertools.accumulate(part.examples_in_shard for part in parts)),
    )


def open_tfds(config: SourceConfig) -> Tfds:
  """A TFDS data set as a source, downloaded and prepared if need be.

  Raises:
    InputError: there is none, or it has no such split of labeled images.
    RunError: TFDS cannot download or prepare it.
  """
  place = config.location[0].removeprefix("tfds:")
  builder = _prepared_builder(place, config.data_dir)
  features: dict[str, Any] = {}
  if isinstance(builder.info.features, _F.FeaturesDict):
    features = dict(builder.info.features.items())

  def resolve_feature(
    flag: str, asked: str | None, is_fit: Callable[[Any], bool]
  ) -> str:
    fitting = [key for key, feature in features.items() if is_fit(feature)]
    return resolve_choice(place, flag, asked, fitting)

  image = resolve_feature("--image", config.image, _is_image)
  label = resolve_feature("--label", config.label, _names_classes)
  if config.label is None:
    warn_of_unusual_label(place, label)
  columns = [image, label]
  if config.units is not None:
    check_unit_name(config.units)
    columns.append(resolve_feature("--units", config.units, _is_integer))
  else:
    check_unused_owners(place, _names_of(features) - set(columns))
  warn_of_unread_splits(place, _names_of(features) - set(columns))
  full_name = builder.info.full_name
  check_name(place, full_name)
  sizes: dict[str, int] = {}
  for name, info in builder.info.splits.items():
    if info.num_examples > 0:
      sizes[name] = info.num_examples
  split = resolve_choice(
    f"tfds:{full_name}", "--split", config.split, sorted(sizes)
  )
  # Names that are stated nowhere are made of numbers when they are asked for.
  check_num_classes(features[label].num_classes, repr(place))
  files = _files_of(builder, split)
  _check_counts(builder, split)
  # Labels stay in the records: zeros stand here for how many there are, and
  # each is read with its image.
  source = Tfds(
    name=config.name or full_name.removesuffix(f"/{builder.version}"),
    split=split,
    class_names=class_names(features[label].names, config, place),
    unit=config.units or EXAMPLE,
    labels=unread_labels(sizes[split]),
    root=os.path.abspath(builder.data_dir),
    files=files,
    columns=tuple(columns),
    locations=np.zeros((0, 3), np.int64),
  )
  # Where the job starts, so that a data set that cannot be read is found now.
  source.open()
  return source


def _names_of(features: Mapping[str, Any]) -> set[str]:
  """The names of all features; one within another is called meta.split."""
  names = set(features)
  for name, feature in features.items():
    if isinstance(feature, _F.FeaturesDict):
      inner = _names_of(dict(feature.items()))
      names.update(f"{name}.{inner_name}" for inner_name in inner)
  return names


def _is_image(feature: Any) -> bool:
  # A mask of labels per pixel is an image too, for TFDS.
  is_mask = isinstance(feature, _F.LabeledImage)
  is_image = isinstance(feature, _F.Image) and not is_mask
  return is_image and feature.np_dtype == np.uint8


def _names_classes(feature: Any) -> bool:
  return isinstance(feature, _F.ClassLabel) and bool(feature.num_classes)


def _is_integer(feature: Any) -> bool:
  if feature.shape != ():  # of features within it there are several
    return False
  dtype = np.dtype(getattr(feature, "np_dtype", None) or bool)
  return dtype.kind in "iu" and dtype != np.uint64


def _files_of(builder: Any, split: str) -> tuple[File, ...]:
  """The files of a split, with their sizes.

  Raises:
    InputError: the metadata state no names of files in the folder.
    RunError: a file is not there.
  """
  folder = os.path.abspath(builder.data_dir)
  with readable_as(f"tfds:{folder}", "data set of TFDS"):
    parts = builder.info.splits[split].file_instructions
    paths = [os.fspath(part.filename) for part in parts]
  files: list[File] = []
  for path in paths:
    # A template of names may lead anywhere, such as to another data set.
    if not os.path.abspath(path).startswith(f"{folder}{os.sep}"):
      raise InputError(
        f"{folder!r}: dataset_info.json states a file that is not in the"
        f" folder, {path[:_SHOWN_CHARACTERS]!r}: prepare the data set again."
      )
    try:
      files.append(File(os.path.basename(path), os.path.getsize(path), 0))
    except OSError as error:
      raise RunError(
        f"{path[:_SHOWN_CHARACTERS]!r} cannot be read: {error.strerror};"
        " prepare the data set again."
      ) from error
  return tuple(files)


def _check_counts(builder: Any, split: str) -> None:
  """Refuses a file that does not have as many records as the metadata state.

  Records beyond the stated number would silently be left out, and nothing else
  bounds that number.
  """
  for part in builder.info.splits[split].file_instructions:
    path = os.fspath(part.filename)
    with readable_as(path, "ArrayRecord file"):
      reader = array_record_module.ArrayRecordReader(path, "max_parallelism:0")
      num_records = reader.num_records()
      reader.close()
    if num_records != part.examples_in_shard:
      raise InputError(
        f"{path!r} has {num_records:,} records, and dataset_info.json states"
        f" {part.examples_in_shard:,}: prepare the data set again."
      )


def _prepared_builder(place: str, data_dir: str | None) -> Any:
  """The builder of a data set, whose data are on disk as ArrayRecord.

  Args:
    place: NAME, NAME/CONFIG:VERSION, or the folder of a prepared data set.
    data_dir: where TFDS keeps its data sets; None is TFDS's own default.
  """
  if os.path.isdir(place):
    builder = _builder_of_folder(place)
  else:
    builder = _builder_of_name(place, data_dir)
  folder = builder.data_dir
  formats = builder.info.available_file_formats()
  if _ARRAY_RECORD not in formats:
    names = ", ".join(sorted(kind.value for kind in formats))
    raise InputError(
      f"{folder!r} is prepared as {names}, not to be read by index: prepare it"
      " in another --data-dir, or run tfds convert_format"
      f" --dataset_version_dir={folder} --out_file_format=array_record."
    )
  return builder


def _builder_of_folder(folder: str) -> Any:
  """The builder of a prepared folder, whatever the folder is called."""
  check_metadata(folder)
  _refuse_unprepared(folder)
  with readable_as(f"tfds:{folder}", "data set of TFDS"):
    return tfds.builder_from_directory(folder)


def _builder_of_name(name: str, data_dir: str | None) -> Any:
  """The builder of a data set that TFDS knows, or finds in `data_dir`."""
  known_folder = os.path.join(
    os.path.expanduser(data_dir or tfds.core.constants.DATA_DIR),
    re.split("[/:]", name)[0],
  )
  check_metadata(known_folder)
  # Code of any data set runs here, and fails as it likes.
  try:
    builder = tfds.builder(name, data_dir=data_dir)
    if not builder.is_prepared():
      tfds.display_progress_bar(sys.stderr.isatty())
      builder.download_and_prepare(file_format=_ARRAY_RECORD)
  except Exception as error:
    message = (
      f"tfds:{name} cannot be opened or prepared; check name, config and"
      f" version: {one_line(error)}."
    )
    not_found = tfds.core.DatasetNotFoundError
    if isinstance(error, (ValueError, AssertionError, not_found)):
      raise InputError(message) from error
    raise RunError(message) from error
  # TFDS leaves a folder alone that is there already, whatever is in it.
  _refuse_unprepared(builder.data_dir)
  return builder


def _refuse_unprepared(folder: str) -> None:
  """Raises InputError for a folder without the files that TFDS writes last."""
  for name in ("dataset_info.json", "features.json"):
    if not os.path.lexists(os.path.join(folder, name)):
      raise InputError(
        f"{folder!r} is not a data set that TFDS prepared: it has no {name}."
        " Name the folder that has it, which is called after a version as in"
        " mnist/3.0.1, or prepare the data set again."
      )
