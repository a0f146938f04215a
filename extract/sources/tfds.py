"""A TensorFlow Datasets data set, read without TensorFlow.

TFDS prepares, describes and stores the data; of a record only the image and
the label are parsed, and the image stays the file's bytes, which the
extraction job decodes itself.
"""

import difflib
import os
import sys
import textwrap

import tensorflow_datasets as tfds
from tensorflow_datasets.core import naming

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.sources import digits  # noqa: F401  (TFDS finds it by name from then on)
from oneshot_dp.extract.sources.example import Example, number_of
from oneshot_dp.extract.sources.tfds_keys import (
  image_key,
  label_key,
  scalar_key,
)
from oneshot_dp.extract.storage.fetch_ahead import Buffer

_ARRAY_RECORD = tfds.core.FileFormat.ARRAY_RECORD


class TfdsExamples:
  """A split of a TFDS data set as a `Source`.

  Formal guarantees: the index is the position in the split as it was asked for
  ("train[50%:]" starts again at 0), in the order of the ArrayRecord files,
  which is fixed when the data set is prepared. So is `example_id`, unless
  `id_key` names a feature that holds a number.
  """

  def __init__(
    self,
    config: extract_config.TfdsSource,
    split: str,
    listing: Buffer | None = None,
  ) -> None:
    del listing  # The files' sizes are looked up wherever they are read.
    builder = _prepared(_builder(config))
    features = builder.info.features
    if not isinstance(features, tfds.features.FeaturesDict):
      raise InputError(
        f"{builder.info.full_name} has no dictionary of features, so no image "
        "and label by name: it cannot be read as labelled images."
      )
    self.version = str(builder.version)
    self.name = builder.info.full_name.removesuffix(f"/{self.version}")
    self._split = split
    self._image_key = image_key(config, features)
    self._label_key = label_key(config, features)
    self.class_names: tuple[str, ...] = tuple(features[self._label_key].names)
    self._unit_key = scalar_key(
      config,
      "unit_key",
      features,
      "iu",
      "an integer",
      "the id of a user, a patient ...",
    )
    self.privacy_unit = self._unit_key or extract_config.EXAMPLE_UNIT
    self._id_key = scalar_key(
      config, "id_key", features, "OSU", "a text", "the name of the file"
    )
    self.id_source = self._id_key or extract_config.POSITION_IDS
    _check_split(builder, split)
    self._records = builder.as_data_source(
      split,
      deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
      file_format=_ARRAY_RECORD,
    )
    self.listing = "".join(
      f"{_size(f.filename)} {os.path.basename(f.filename)}"
      f" {f.skip} {f.take} {f.examples_in_shard}\n"
      for f in builder.info.splits[split].file_instructions
    ).encode()
    keys = (self._image_key, self._label_key, self._unit_key, self._id_key)
    self._features = tfds.features.FeaturesDict(
      {key: features[key] for key in keys if key is not None}
    )
    self._decoders = {self._image_key: tfds.decode.SkipDecoding()}

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Example:
    """Returns the undecoded image and the label of record `index`."""
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    try:
      record = self._records[index]
    except RuntimeError as error:
      raise RunError(
        f"{self.where(index)} cannot be read: {_reason(error)}: prepare the "
        "data set again."
      ) from error
    example = self._features.deserialize_example_np(
      record, decoders=self._decoders
    )
    label = int(example[self._label_key])
    if not 0 <= label < len(self.class_names):
      raise InputError(
        f"{self.where(index)} has a label that is none of the "
        f"{len(self.class_names)} classes: TFDS marks unlabelled examples so, "
        "choose a split with labels."
      )
    unit, name = self._unit_key, self._id_key
    return Example(
      example_id=(
        index
        if name is None
        else number_of(example[name], f"{self.where(index)}, {name}")
      ),
      label=label,
      image=example[self._image_key],
      unit_id=None if unit is None else int(example[unit]),
    )

  def where(self, index: int) -> str:
    return f"{self.name}/{self._split}[{index}]"


def _size(file: str) -> int:
  try:
    return os.path.getsize(file)
  except OSError as error:
    raise RunError(
      f"{file!r} cannot be read: {error.strerror}: prepare the data set again."
    ) from error


def _reason(error: Exception) -> str:
  """Returns TFDS's reason, which may be pages long, on part of a line."""
  reason = textwrap.shorten(str(error), 400, placeholder=" ...")
  return reason.rstrip(".") or type(error).__name__


def _builder(config: extract_config.TfdsSource) -> tfds.core.DatasetBuilder:
  """Finds the data set: in `data_dir` itself, by its code, or by its files."""
  try:
    if config.data_dir is not None:
      folder = tfds.core.Path(config.data_dir).expanduser()
      if (folder / "dataset_info.json").exists():
        builder = tfds.builder_from_directory(folder)
        _check_identity(builder, config)
        return builder
    return tfds.builder(config.name, data_dir=config.data_dir)
  except InputError:
    raise
  except tfds.core.DatasetNotFoundError as error:
    raise InputError(_not_found(config)) from error
  except (ValueError, AssertionError) as error:
    raise InputError(
      f"source.name={config.name!r} is not a TFDS data set that can be opened: "
      f"{_reason(error)}."
    ) from error
  # Code of any data set may run here, and fail as it likes.
  except Exception as error:
    raise RunError(
      f"TFDS could not open {config.name!r}: {_reason(error)}."
    ) from error


def _check_identity(
  builder: tfds.core.DatasetBuilder, config: extract_config.TfdsSource
) -> None:
  """Refuses a prepared folder that holds something else than was asked for."""
  name, kwargs = naming.parse_builder_name_kwargs(config.name)
  if (
    str(name) != builder.name
    or kwargs.get("config") not in (None, builder.builder_config_name)
    or not builder.version.match(kwargs.get("version", "*.*.*"))
  ):
    raise InputError(
      f"source.data_dir={config.data_dir!r} holds {builder.info.full_name}, "
      f"not source.name={config.name!r}: change one of them."
    )


def _not_found(config: extract_config.TfdsSource) -> str:
  """Says that there is no such data set, and which come near."""
  name = config.name.split(":")[0].split("/")[0]
  # Those of the community are listed on the network.
  known = set(tfds.list_builders(with_community_datasets=False))
  where = ""
  if config.data_dir is not None:
    where = f", nor prepared in {config.data_dir!r}"
    folder = tfds.core.Path(config.data_dir).expanduser()
    if folder.is_dir():
      known.update(child.name for child in folder.iterdir() if child.is_dir())
  near = difflib.get_close_matches(name, sorted(known), n=3)
  hint = f" Did you mean {' or '.join(near)}?" if near else ""
  return (
    f"source.name={config.name!r} is not a data set of TFDS or of an imported "
    f"module{where}: check the name, config and version.{hint}"
  )


def _prepared(builder: tfds.core.DatasetBuilder) -> tfds.core.DatasetBuilder:
  """Returns the builder once its data is on disk as ArrayRecord."""
  if not builder.is_prepared():
    tfds.display_progress_bar(sys.stderr.isatty())
    try:
      builder.download_and_prepare(file_format=_ARRAY_RECORD)
    except InputError:
      raise
    # The network, the disk, or the data set's own code.
    except Exception as error:
      raise RunError(
        f"TFDS could not download and prepare {builder.info.full_name} in "
        f"{builder.data_dir!r}: {_reason(error)}."
      ) from error
    # TFDS leaves a folder alone that is there already, whatever is in it.
    if not builder.is_prepared():
      raise InputError(
        f"{builder.data_dir!r} is there but has no dataset_info.json, so "
        f"{builder.info.full_name} is not whole: delete the folder and it is "
        "prepared again."
      )
  formats = builder.info.available_file_formats()
  if _ARRAY_RECORD not in formats:
    found = ", ".join(sorted(each.value for each in formats))
    raise InputError(
      f"{builder.info.full_name} in {builder.data_dir!r} is prepared as "
      f"{found}, which cannot be read by index: {_as_array_record(builder)}."
    )
  return builder


def _as_array_record(builder: tfds.core.DatasetBuilder) -> str:
  """Says how to prepare the data set as ArrayRecord."""
  full_name = builder.info.full_name
  if builder.name in tfds.list_builders(with_community_datasets=False):
    name, _, version = full_name.rpartition("/")
    return (
      f"run tfds.builder('{name}:{version}', data_dir=FOLDER)"
      ".download_and_prepare(file_format='array_record') with another folder, "
      "and set source.data_dir to it"
    )
  return (
    "where TensorFlow is installed, run tfds convert_format "
    f"--dataset_version_dir={builder.data_dir} --out_file_format=array_record"
  )


def _check_split(builder: tfds.core.DatasetBuilder, split: str) -> None:
  splits = ", ".join(
    f"{name} ({info.num_examples})"
    for name, info in builder.info.splits.items()
  )
  parts = [part.partition("[")[0].strip() for part in split.split("+")]
  if len(set(parts)) < len(parts) or ("all" in parts and len(parts) > 1):
    raise InputError(
      f"split={split!r} may read an example twice, and an example may be"
      " counted only once: name each split in it once."
    )
  try:
    num_examples = builder.info.splits[split].num_examples
  except (ValueError, NotImplementedError) as error:
    raise InputError(
      f"split={split!r} is not a split of {builder.info.full_name}, which has "
      f"{splits or 'none'}, whole or sliced as in train[:10%]: "
      f"{_reason(error)}."
    ) from error
  if num_examples < 1:
    raise InputError(
      f"split={split!r} of {builder.info.full_name} has no examples: it has "
      f"{splits}."
    )
