"""A TensorFlow Datasets data set, read without TensorFlow: tfds:NAME.

TFDS prepares, describes and stores the data; of a record only the image and the
label are parsed, and the image stays the bytes of its file.
"""

import dataclasses
import difflib
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import naming

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import (
  EXAMPLE,
  SourceSettings,
  check_unit_name,
)
from oneshot_dp.extract.sources.classes import chosen, class_names, shortened
from oneshot_dp.extract.sources.source import Example, Source

_ARRAY_RECORD = tfds.core.FileFormat.ARRAY_RECORD


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tfds(Source):
  """A split, in the order of its ArrayRecord files, fixed when prepared.

  Attributes:
    builder: name, config and version, as TFDS has them.
    data_dir: where it is, if not in TFDS's own place.
    keys: features: image, label, unit.
    files: name, bytes, skip, take of each file.
  """

  builder: str
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
        f"{where} cannot be read: {_reason(error)}; prepare the data set again."
      ) from error
    row = features.deserialize_example_np(record, decoders=decoders)
    image, label, *unit = (row[key] for key in self.keys)
    if not 0 <= label < len(self.class_names):
      raise InputError(
        f"{where} has a label that is none of the {len(self.class_names)}"
        " classes: TFDS marks unlabelled examples so, choose a split with"
        " labels."
      )
    return Example(
      label=int(label),
      image=image,
      where=where,
      unit_id=int(unit[0]) if unit else None,
    )

  @functools.cached_property
  def _opened(self) -> tuple[Any, Any, Mapping[str, Any]]:
    """Its records, and how to read them, in this process."""
    builder = _prepared(_builder(self.builder, self.data_dir))
    if _files(builder, self.split) != [list(file) for file in self.files]:
      raise RunError(
        f"{self.name}, {self.split}, is not here what it was where the job was"
        " started: give every worker the same files."
      )
    records = builder.as_data_source(
      self.split,
      deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
      file_format=_ARRAY_RECORD,
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
  builder = _prepared(_builder(asked, settings.data_dir))
  features = builder.info.features
  if not isinstance(features, tfds.features.FeaturesDict):
    raise InputError(
      f"{asked!r} has no dictionary of features, so no image and label by name:"
      " it cannot be read as labelled images."
    )
  keys = _keys(settings, asked, dict(features.items()))
  version = str(builder.version)
  source = Tfds(
    name=settings.name or builder.info.full_name.removesuffix(f"/{version}"),
    split=_split(builder, settings.split),
    class_names=class_names(
      features[keys[1]].names, settings.class_names, settings.num_classes, asked
    ),
    unit=settings.units or EXAMPLE,
    builder=f"{builder.info.full_name.removesuffix('/' + version)}:{version}",
    data_dir=settings.data_dir,
    keys=keys,
    files=tuple(_files(builder, _split(builder, settings.split))),
  )
  _ = source._opened
  return source


def _keys(
  settings: SourceSettings, asked: str, features: Mapping[str, Any]
) -> tuple[str, ...]:
  """The features of image, label and unit."""
  kinds = tfds.features
  images = [
    key
    for key, feature in features.items()
    if isinstance(feature, kinds.Image)
    # A mask of labels per pixel is an image too, for TFDS.
    and not isinstance(feature, kinds.LabeledImage)
    and feature.np_dtype == np.uint8
  ]
  labels = [
    key
    for key, feature in features.items()
    if isinstance(feature, kinds.ClassLabel) and feature.num_classes
  ]
  has = ", ".join(f"{k} ({type(v).__name__})" for k, v in features.items())
  for found, wanted in ((images, "uint8 Image"), (labels, "ClassLabel")):
    if not found:
      raise InputError(
        f"{asked!r} has no {wanted} at the top level of its features, only"
        f" {has}: the classes are not read off the labels, which are private."
      )
  keys = (
    chosen(asked, "--image", settings.image, images),
    chosen(asked, "--label", settings.label, labels),
  )
  if settings.units is None:
    return keys
  unit = features.get(settings.units)
  dtype = np.dtype(getattr(unit, "np_dtype", bool))
  if unit is None or unit.shape or dtype.kind not in "iu" or dtype == np.uint64:
    raise InputError(
      f"{asked!r}: --units {settings.units!r} is no integer at the top level of"
      f" its features, which are {has}."
    )
  check_unit_name(settings.units)
  return (*keys, settings.units)


def _split(builder: Any, split: str | None) -> str:
  splits = sorted(builder.info.splits)
  if split is None and len(splits) == 1:
    return splits[0]
  parts = [part.partition("[")[0].strip() for part in (split or "").split("+")]
  if len(set(parts)) < len(parts) or ("all" in parts and len(parts) > 1):
    raise InputError(
      f"--split {split!r} may read an example twice, and it may be counted only"
      " once: name each split once."
    )
  try:
    if split is not None and builder.info.splits[split].num_examples:
      return split
  except (KeyError, ValueError, AssertionError, TypeError):
    pass
  if split is None:
    raise InputError(
      f"{builder.info.full_name} has several splits: give --split"
      f" {' or '.join(splits)}."
    )
  raise InputError(
    f"{builder.info.full_name} has no split {split!r} with examples: it has"
    f" {shortened(splits)}."
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


@contextmanager
def _tfds_errors(asked: str) -> Iterator[None]:
  """Code of any data set runs here, and fails as it likes."""
  try:
    yield
  except (InputError, RunError):
    raise
  except tfds.core.DatasetNotFoundError as error:
    # Those of the community are listed on the network.
    known = tfds.list_builders(with_community_datasets=False)
    name = asked.split(":")[0].split("/")[0]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise InputError(
      f"tfds:{asked} is not a data set of TFDS, nor prepared in its folder:"
      f" check name, config and version.{hint}"
    ) from error
  except (ValueError, AssertionError) as error:
    raise InputError(
      f"tfds:{asked} cannot be opened: {_reason(error)}."
    ) from error
  except Exception as error:
    raise RunError(
      f"TFDS could not open or prepare {asked}: {_reason(error)}."
    ) from error


def _builder(asked: str, data_dir: str | None) -> Any:
  """Finds the data set: in `data_dir` itself, by its code, or by its files."""
  with _tfds_errors(asked):
    folder = os.path.expanduser(data_dir or "")
    if data_dir and os.path.exists(os.path.join(folder, "dataset_info.json")):
      builder = tfds.builder_from_directory(folder)
      name, options = naming.parse_builder_name_kwargs(asked)
      if (
        str(name) != builder.name
        or options.get("config") not in (None, builder.builder_config_name)
        or not builder.version.match(options.get("version", "*.*.*"))
      ):
        raise InputError(
          f"--data-dir {data_dir!r} holds {builder.info.full_name}, not"
          f" {asked!r}."
        )
      return builder
    return tfds.builder(asked, data_dir=folder or None)


def _prepared(builder: Any) -> Any:
  """The builder, once its data are on disk as ArrayRecord."""
  name, place = builder.info.full_name, builder.data_dir
  if not builder.is_prepared():
    tfds.display_progress_bar(sys.stderr.isatty())
    with _tfds_errors(name):
      builder.download_and_prepare(file_format=_ARRAY_RECORD)
    # TFDS leaves a folder alone that is there already, whatever is in it.
    if not builder.is_prepared():
      raise InputError(
        f"{place!r} is there but has no dataset_info.json, so {name} is not"
        " whole: delete the folder, and it is prepared again."
      )
  formats = builder.info.available_file_formats()
  if _ARRAY_RECORD not in formats:
    found = ", ".join(sorted(each.value for each in formats))
    raise InputError(
      f"{name} in {place!r} is prepared as {found}, which cannot be read by"
      " index: prepare it in another --data-dir with"
      " download_and_prepare(file_format='array_record'), or run tfds"
      f" convert_format --dataset_version_dir={place}"
      " --out_file_format=array_record where TensorFlow is installed."
    )
  return builder


def _reason(error: Exception) -> str:
  """TFDS's reason, which may be pages long, on part of a line."""
  reason = escaped(" ".join(str(error).split()))[:400]
  return reason.rstrip(".") or type(error).__name__
