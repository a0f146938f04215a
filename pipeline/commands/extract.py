"""`oneshot-dp extract`."""

import dataclasses
import os
from typing import Annotated, Any

from tyro.conf import Positional, Suppress

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.experiments import EXPERIMENTS, load_experiment
from oneshot_dp.configs.extract_config import (
  ComputeDtype,
  EmbeddingDtype,
  ExtractConfig,
  OnDecodeError,
  PreprocessConfig,
  Resample,
  SourceSettings,
)
from oneshot_dp.extract.backbones.names import backbone_names
from oneshot_dp.pipeline.answer import Answer
from oneshot_dp.pipeline.commands import flags as f

STOP_SECONDS = 60
"""A job on an engine is stopped there before the command ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Embed every image of a source, once, with a frozen public backbone.

  SOURCE: a folder of a folder for each class, FILE.npz, Parquet or WebDataset
  files, gs:// or s3:// URLs of them, tfds:NAME; or an experiment:
  {experiments}.
  Backbones: {backbones}.
  Other flags go to Beam (--runner=…). The same command resumes a stopped job.

  oneshot-dp extract photos --backbone vit_ti16 --out caches/train
  """

  source: Annotated[Positional[tuple[str, ...]], f.flag("Images.", "SOURCE")]
  out: Annotated[str, f.flag("The cache; private, as the images.", "CACHE")]
  split: Annotated[str | None, f.flag("train, test, …", "NAME")] = None
  name: Annotated[str | None, f.flag("Public name of the data.", "NAME")] = None
  image: Annotated[str | None, f.flag("Column of images.", "NAME")] = None
  label: Annotated[str | None, f.flag("Column of labels.", "NAME")] = None
  class_names: Annotated[
    tuple[str, ...], f.flag("All classes, if nothing names them.", "NAME")
  ] = ()
  num_classes: Annotated[int | None, f.flag("Or how many.", "K")] = None
  units: Annotated[
    str | None,
    f.flag("Whose images are: column, CSV, or '(?P<patient>[^_]+)_'.", "BY"),
  ] = None
  data_dir: Annotated[str | None, f.flag("Where TFDS's are.", "DIR")] = None
  backbone: Annotated[
    str | None, f.flag("A name, or FILE.py:FUNCTION.", "NAME")
  ] = None
  weights: Annotated[
    str | None, f.flag("Path or URL; else the name's.", "FILE")
  ] = None
  weights_sha256: Annotated[str | None, f.flag("Of these.", "HEX")] = None
  embedding: Annotated[str | None, f.flag("Layer: cls, mean …", "NAME")] = None
  compute_dtype: Annotated[
    ComputeDtype | None, f.flag("Of products.", "DTYPE")
  ] = None
  image_size: Annotated[int | None, f.flag("Side, pixels.", "N")] = None
  resize: Annotated[str | None, f.flag("N, square or crop.", "HOW")] = None
  resample: Annotated[Resample | None, f.flag("Filter.", "HOW")] = None
  views: Annotated[int | None, f.flag("Mean of random crops.", "N")] = None
  view_min_area: Annotated[float | None, f.flag("Of a crop.", "X")] = None
  batch_size: Annotated[int | None, f.flag("Images per call.", "N")] = None
  embedding_dtype: Annotated[
    EmbeddingDtype | None, f.flag("As stored.", "DTYPE")
  ] = None
  shard_rows: Annotated[int | None, f.flag("Images per shard.", "N")] = None
  decode_threads: Annotated[int | None, f.flag("Else the cores.", "N")] = None
  on_decode_error: Annotated[
    OnDecodeError | None, f.flag("Broken images: fail or skip.", "HOW")
  ] = None
  stall_seconds: Annotated[int | None, f.flag("Longest wait.", "N")] = None
  beam_options: Suppress[tuple[str, ...]] = ()


_names = [name for name in backbone_names() if "_" in name]
Flags.__doc__ = (Flags.__doc__ or "").format(
  experiments=", ".join(EXPERIMENTS), backbones=", ".join(_names)
)
_OF_SOURCE = {field.name for field in dataclasses.fields(SourceSettings)}
_OF_JOB = {field.name for field in dataclasses.fields(ExtractConfig)}
_OF_IMAGES = {field.name for field in dataclasses.fields(PreprocessConfig)}


def job_of(flags: Flags) -> ExtractConfig:
  """The job that is asked for; what is not given is the experiment's.

  Raises:
    InputError: no SOURCE, or values that make no job.
  """
  if not flags.source:
    raise InputError("give a SOURCE, such as a folder of images; see --help.")
  word = flags.source[0]
  if len(flags.source) == 1 and not (
    os.path.lexists(word) or ":" in word or "*" in word or "{" in word
  ):
    job = load_experiment(word)
  else:
    source = SourceSettings(location=flags.source)
    job = ExtractConfig(source=source)
  given: dict[str, Any] = {
    field.name: value
    for field in dataclasses.fields(Flags)
    if (value := getattr(flags, field.name)) not in (None, ())
    and field.name not in ("source", "out", "beam_options")
  }
  if (given.get("resize") or "").isdigit():
    given["resize"] = int(given["resize"])
  elif given.get("resize", "square") not in ("square", "crop"):
    raise InputError(f"--resize {given['resize']!a}: give N, square or crop.")

  def of(fields: set[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in fields}

  return dataclasses.replace(
    job,
    source=dataclasses.replace(job.source, **of(_OF_SOURCE)),
    preprocess=dataclasses.replace(job.preprocess, **of(_OF_IMAGES)),
    **of(_OF_JOB),
  )


def run(flags: Flags) -> Answer:
  """Runs the job; see `run_extraction`."""
  job = job_of(flags)
  from oneshot_dp.extract.cache.check import describe
  from oneshot_dp.extract.job.job import run_extraction

  cache = run_extraction(job, flags.out, flags.beam_options)
  said = describe(cache)
  width = max(map(len, said))
  lines = [f"{name:{width}}  {value}" for name, value in said.items()]
  return Answer(
    text="\n".join([f"{cache.name}: finished", *lines]),
    facts={"cache": flags.out, "metadata": cache.info.public()},
  )
