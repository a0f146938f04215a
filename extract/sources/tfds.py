"""A TensorFlow Datasets data set, read without TensorFlow: tfds:NAME.

TFDS prepares, describes and stores the data; of a record only the image and the
label are parsed, and the image stays the bytes of its file. tfds:FOLDER is one
that is prepared, by its folder.
"""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  SourceSettings,
  check_unit_name,
)
from oneshot_dp.extract.sources.classes import chosen, class_names
from oneshot_dp.extract.sources.listed_files import shortened
from oneshot_dp.extract.sources.source import Example, Source

_ARRAY_RECORD = tfds.core.FileFormat.ARRAY_RECORD


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tfds(Source):
  """A split, in the order of its ArrayRecord files, fixed when prepared.

  Attributes:
    asked: name, config and version, or the folder.
    data_dir: where TFDS has it, if not in its own place.
    keys: features: image, label, unit.
    files: name, bytes, skip, take of each file.
  """

  asked: str
  data_dir: str | None
  keys: tuple[str, ...]
  files: tuple[Sequence[Any], ...]

  def __len__(self) -> int:
    return sum(file[3] for file in self.files)

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    records, features, decoders = self._opened
    where = f"{self.name}/{self.split}[{index}]"
    try:
      record = records[index]
    except RuntimeError as error:
      raise RunError(
        f"{where} cannot be read: {one_line(error)}; prepare the data anew."
      ) from error
    row = features.deserialize_example_np(record, decoders=decoders)
    image, label, *unit = (row[key] for key in self.keys)
    if not 0 <= label < len(self.class_names):
      raise InputError(
        f"{where} has a label that is none of the {len(self.class_names)}"
        " classes: TFDS marks unlabelled examples so, choose a split with"
        " labels."
      )
    unit_id = int(unit[0]) if unit else None
    return Example(label=int(label), image=image, where=where, unit_id=unit_id)

  @functools.cached_property
  def _opened(self) -> tuple[Any, Any, Mapping[str, Any]]:
    """Its records, and how to read them, in this process."""
    builder = _prepared(self.asked, self.data_dir)
    if _files(builder, self.split) != [list(file) for file in self.files]:
      raise RunError(
        f"{self.name}, {self.split}, is not here what it was where the job was"
        " started: give every worker the same files."
      )
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    records = builder.as_data_source(
      self.split, deserialize_method=raw, file_format=_ARRAY_RECORD
    )
    features = {key: builder.info.features[key] for key in self.keys}
    decoders = {self.keys[0]: tfds.decode.SkipDecoding()}
    return records, tfds.features.FeaturesDict(features), decoders


def open_tfds(settings: SourceSettings) -> Tfds:
  """A TFDS data set as a source, downloaded and prepared if need be.

  Raises:
    InputError: there is none, or it has no such split of labelled images.
    RunError: TFDS cannot download or prepare it.
  """
  asked = settings.location[0].removeprefix("tfds:")
  builder = _prepared(asked, settings.data_dir)
  features = builder.info.features
  if not isinstance(features, tfds.features.FeaturesDict):
    raise InputError(f"tfds:{asked} has no features by name, so no images.")
  keys = _keys(settings, asked, dict(features.items()))
  name, split = builder.info.full_name, _split(builder, settings.split)
  version = f"/{builder.version}"
  if not os.path.isdir(asked):
    asked = f"{name.removesuffix(version)}:{version[1:]}"
  source = Tfds(
    name=settings.name or name.removesuffix(version),
    split=split,
    class_names=class_names(features[keys[1]].names, settings, asked),
    unit=settings.units or EXAMPLE,
    asked=asked,
    data_dir=settings.data_dir,
    keys=keys,
    files=tuple(_files(builder, split)),
  )
  _ = source._opened  # so that it can be
  return source


def _keys(
  settings: SourceSettings, asked: str, features: Mapping[str, Any]
) -> tuple[str, ...]:
  """The features of image, label and unit."""
  f = tfds.features
  images = [
    key
    for key, feature in features.items()
    # A mask of labels per pixel is an image too, for TFDS.
    if isinstance(feature, f.Image) and not isinstance(feature, f.LabeledImage)
    if feature.np_dtype == np.uint8
  ]
  labels = [
    key
    for key, feature in features.items()
    if isinstance(feature, f.ClassLabel) and feature.num_classes
  ]
  keys = (
    chosen(f"tfds:{asked}", "--image", settings.image, images),
    chosen(f"tfds:{asked}", "--label", settings.label, labels),
  )
  if settings.units is None:
    return keys
  numbers = [
    key
    for key, feature in features.items()
    if feature.shape == ()
    and np.dtype(feature.np_dtype).kind in "iu"
    and feature.np_dtype != np.uint64
  ]
  check_unit_name(settings.units)
  return (*keys, chosen(f"tfds:{asked}", "--units", settings.units, numbers))


def _split(builder: Any, split: str | None) -> str:
  splits, name = sorted(builder.info.splits), builder.info.full_name
  split = splits[0] if split is None and len(splits) == 1 else split
  parts = [part.partition("[")[0].strip() for part in (split or "").split("+")]
  if len(set(parts)) < len(parts) or ("all" in parts and len(parts) > 1):
    raise InputError(
      f"--split {split!r} may read an example twice, and it may be counted only"
      " once: name each split once."
    )
  with contextlib.suppress(KeyError, ValueError, AssertionError, TypeError):
    if split is not None and builder.info.splits[split].num_examples > 0:
      return split
  raise InputError(
    f"tfds:{name} has {'several splits' if split is None else 'no'}"
    f"{f' split {split!r} with examples' if split else ''}: give --split, of"
    f" {shortened(splits)}, whole or sliced by position as train[:1000]."
  )


def _files(builder: Any, split: str) -> list[list[Any]]:
  found = []
  for part in builder.info.splits[split].file_instructions:
    try:
      size = os.path.getsize(part.filename)
    except OSError as error:
      raise RunError(
        f"{part.filename!r} cannot be read: {error.strerror}; prepare the data"
        " set again."
      ) from error
    name = os.path.basename(part.filename)
    found.append([name, size, part.skip, part.take])
  return found


def _prepared(asked: str, data_dir: str | None) -> Any:
  """The builder of a data set, whose data are on disk as ArrayRecord."""
  with _tfds_errors(asked):
    if os.path.isdir(asked):
      builder = tfds.builder_from_directory(asked)
    else:
      builder = tfds.builder(asked, data_dir=data_dir)
    if not builder.is_prepared():
      tfds.display_progress_bar(sys.stderr.isatty())
      builder.download_and_prepare(file_format=_ARRAY_RECORD)
  place = builder.data_dir
  # TFDS leaves a folder alone that is there already, whatever is in it.
  if not builder.is_prepared():
    raise InputError(
      f"{place!r} is there but has no dataset_info.json, so tfds:{asked} is not"
      " whole: delete the folder, and it is prepared again."
    )
  formats = builder.info.available_file_formats()
  if _ARRAY_RECORD not in formats:
    found = ", ".join(sorted(each.value for each in formats))
    raise InputError(
      f"tfds:{asked} in {place!r} is prepared as {found}, which cannot be read"
      " by index: prepare it in another --data-dir with"
      " download_and_prepare(file_format='array_record'), or run tfds"
      f" convert_format --dataset_version_dir={place}"
      " --out_file_format=array_record where TensorFlow is installed."
    )
  return builder


@contextlib.contextmanager
def _tfds_errors(asked: str) -> Iterator[None]:
  """Code of any data set runs here, and fails as it likes."""
  try:
    yield
  except (InputError, RunError):
    raise
  except tfds.core.DatasetNotFoundError as error:
    raise InputError(
      f"tfds:{asked} is no data set of TFDS, nor prepared in its folder: check"
      " the name, config and version."
    ) from error
  except Exception as error:
    is_asked = isinstance(error, ValueError | AssertionError)
    kind = InputError if is_asked else RunError
    raise kind(
      f"tfds:{asked} cannot be opened or prepared: {one_line(error)}."
    ) from error
