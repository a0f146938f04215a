"""A TensorFlow Datasets data set, read without TensorFlow: tfds:NAME.

TFDS prepares, describes and stores the data; of a record only the image and the
label are parsed, and the image stays the bytes of its file. tfds:FOLDER is one
that is prepared, by its folder.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  SourceConfig,
  check_unit_name,
)
from oneshot_dp.extract.sources.labels import chosen, class_names
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.source import Example, Source

_ARRAY_RECORD = tfds.core.FileFormat.ARRAY_RECORD
_F = tfds.features


class Tfds(Source):
  """A split, in the order of its ArrayRecord files, fixed when prepared.

  Labels and units are read with the images: `labels` says how many there are,
  and `columns` the features of image, label and unit; `root` is where it is.
  """

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    records, features, decoders = self._opened
    try:
      record = records[index]
    except RuntimeError as error:
      said = f"{self.display_path(index)} cannot be read: {one_line(error)}."
      raise RunError(said) from error
    row = features.deserialize_example_np(record, decoders=decoders)
    image, label, *unit = (row[key] for key in self.columns)
    if not 0 <= label < len(self.class_names):
      raise InputError(
        f"{self.display_path(index)} has a label that is none of its"
        f" {len(self.class_names)} classes: TFDS marks unlabelled examples so,"
        " choose another split."
      )
    return Example(int(label), image, int(unit[0]) if unit else None)

  def name_of(self, index: int) -> str:
    """Where it is: NAME/SPLIT[index]."""
    return f"{self.name}/{self.split}[{index}]"

  @functools.cached_property
  def _opened(self) -> tuple[Any, Any, Any]:
    """Its records, and how to read them, in this process."""
    builder = _prepared(self.root, None)
    if _files(builder, self.split) != self.files:
      raise RunError(
        f"{self.name}, {self.split}, is not here what it was where the job was"
        " started: give every worker the same files."
      )
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    records = builder.as_data_source(
      self.split, deserialize_method=raw, file_format=_ARRAY_RECORD
    )
    features = {key: builder.info.features[key] for key in self.columns}
    decoders = {self.columns[0]: tfds.decode.SkipDecoding()}
    return records, _F.FeaturesDict(features), decoders


def open_tfds(settings: SourceConfig) -> Tfds:
  """A TFDS data set as a source, downloaded and prepared if need be.

  InputError: there is none, or it has no such split of labelled images.
  RunError: TFDS cannot download or prepare it.
  """
  asked = settings.location[0].removeprefix("tfds:")
  builder = _prepared(asked, settings.data_dir)
  features = dict(getattr(builder.info.features, "items", dict)())

  def feature(flag: str, key: str | None, fits: Callable[[Any], bool]) -> str:
    return chosen(asked, flag, key, [k for k, f in features.items() if fits(f)])

  image = feature("--image", settings.image, _is_image)
  label = feature("--label", settings.label, _names_classes)
  keys = image, label
  if settings.units is not None:
    check_unit_name(settings.units)
    keys += (feature("--units", settings.units, _is_integer),)
  full, version = builder.info.full_name, str(builder.version)
  splits = {k: s for k, s in builder.info.splits.items() if s.num_examples}
  split = chosen(f"tfds:{full}", "--split", settings.split, sorted(splits))
  source = Tfds(
    name=settings.name or full.removesuffix(f"/{version}"),
    split=split,
    class_names=class_names(features[label].names, settings, asked),
    unit=settings.units or EXAMPLE,
    labels=np.zeros(splits[split].num_examples, np.int32),
    root=os.path.abspath(builder.data_dir),
    files=_files(builder, split),
    columns=keys,
    at=np.zeros((0, 3), np.int64),
  )
  _ = source._opened  # so that it can be
  return source


def _is_image(feature: Any) -> bool:
  # A mask of labels per pixel is an image too, for TFDS.
  is_mask = isinstance(feature, _F.LabeledImage)
  is_image = isinstance(feature, _F.Image) and not is_mask
  return is_image and feature.np_dtype == np.uint8


def _names_classes(feature: Any) -> bool:
  return isinstance(feature, _F.ClassLabel) and bool(feature.num_classes)


def _is_integer(feature: Any) -> bool:
  dtype = np.dtype(getattr(feature, "np_dtype", None) or bool)
  return feature.shape == () and dtype.kind in "iu" and dtype != np.uint64


def _files(builder: Any, split: str) -> tuple[File, ...]:
  parts = builder.info.splits[split].file_instructions
  paths = [part.filename for part in parts]
  try:
    return tuple(
      File(os.path.basename(p), os.path.getsize(p), 0) for p in paths
    )
  except OSError as error:
    reason = f"cannot be read: {error.strerror}; prepare the data set again."
    raise RunError(f"{error.filename!r} {reason}") from error


def _prepared(asked: str, data_dir: str | None) -> Any:
  """The builder of a data set, whose data are on disk as ArrayRecord."""
  try:  # Code of any data set runs here, and fails as it likes.
    if os.path.isdir(asked):
      builder = tfds.builder_from_directory(asked)
    else:
      builder = tfds.builder(asked, data_dir=data_dir)
    if not builder.is_prepared():
      tfds.display_progress_bar(sys.stderr.isatty())
      builder.download_and_prepare(file_format=_ARRAY_RECORD)
  except Exception as error:
    not_found = tfds.core.DatasetNotFoundError
    is_asked = isinstance(error, (ValueError, AssertionError, not_found))
    raise (InputError if is_asked else RunError)(
      f"tfds:{asked} cannot be opened or prepared; check name, config and"
      f" version: {one_line(error)}."
    ) from error
  place = builder.data_dir
  # TFDS leaves a folder alone that is there already, whatever is in it.
  if not builder.is_prepared():
    raise InputError(f"{place!r} has no dataset_info.json: delete the folder.")
  formats = builder.info.available_file_formats()
  if _ARRAY_RECORD not in formats:
    found = ", ".join(sorted(each.value for each in formats))
    raise InputError(
      f"{place!r} is prepared as {found}, not to be read by index: prepare it"
      " in another --data-dir, or run tfds convert_format"
      f" --dataset_version_dir={place} --out_file_format=array_record."
    )
  return builder
