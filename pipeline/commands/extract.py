"""`oneshot-dp extract`."""

import dataclasses
import os
from typing import Annotated, Any

from tyro.conf import Positional, Suppress

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  EXPERIMENTS,
  ComputeDtype,
  EmbeddingDtype,
  ExtractConfig,
  OnDecodeError,
  SourceConfig,
  load_experiment,
)
from oneshot_dp.extract.backbones.names import backbone_names
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f

STOP_SECONDS = 60
"""A job on an engine is stopped there before the command ends."""
_UNITS = "Whose images are: column, CSV, or '/(?P<patient>[^/_]+)_'."
_DTYPES = "float16|float32|bfloat16"
_BACKBONE = "A name, or FILE.py:FUNCTION."


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
    tuple[str, ...], f.flag("All of them, by name.", "C")
  ] = ()
  num_classes: Annotated[int | None, f.flag("Or how many.", "K")] = None
  units: Annotated[str | None, f.flag(_UNITS, "BY")] = None
  data_dir: Annotated[str | None, f.flag("Where TFDS's are.", "DIR")] = None
  backbone: Annotated[str | None, f.flag(_BACKBONE, "NAME")] = None
  weights: Annotated[str | None, f.flag("Else the name's.", "FILE")] = None
  weights_sha256: Annotated[str | None, f.flag("Of these.", "HEX")] = None
  embedding: Annotated[str | None, f.flag("Layer: cls, mean …", "NAME")] = None
  compute_dtype: Annotated[
    ComputeDtype | None, f.flag("Of products.", "float32|bfloat16")
  ] = None
  image_size: Annotated[int | None, f.flag("Side, pixels.", "N")] = None
  resize: Annotated[str | None, f.flag("N, or square.", "HOW")] = None
  views: Annotated[int | None, f.flag("Mean of random crops.", "N")] = None
  batch_size: Annotated[int | None, f.flag("Images per call.", "N")] = None
  embedding_dtype: Annotated[
    EmbeddingDtype | None, f.flag("As stored.", _DTYPES)
  ] = None
  shard_rows: Annotated[int | None, f.flag("Images per shard.", "N")] = None
  on_decode_error: Annotated[
    OnDecodeError | None, f.flag("If broken.", "fail|skip")
  ] = None
  stall_seconds: Annotated[int | None, f.flag("Longest wait.", "N")] = None
  beam_options: Suppress[tuple[str, ...]] = ()


Flags.__doc__ = (Flags.__doc__ or "").format(
  experiments=", ".join(EXPERIMENTS), backbones=", ".join(backbone_names())
)


def job_of(flags: Flags) -> ExtractConfig:
  """The job that is asked for; what is not given is the experiment's.

  InputError: no SOURCE, or values that make no job.
  """
  if not flags.source:
    raise InputError("give a SOURCE, such as a folder of images; see --help.")
  job = ExtractConfig(source=SourceConfig(location=flags.source))
  word = flags.source[0]
  is_place = os.path.lexists(word) or set(":*{") & set(word)
  if len(flags.source) == 1 and not is_place:
    job = load_experiment(word)
  given = {k: v for k, v in vars(flags).items() if v not in (None, ())}
  if (resize := given.get("resize", "square")) != "square":
    if not resize.isdecimal():
      raise InputError(f"--resize {resize!a}: give N, or square.")
    given["resize"] = int(resize)

  def changed(config: Any, **more: Any) -> Any:
    names = {field.name for field in dataclasses.fields(config)} - {"source"}
    asked = {name: given[name] for name in names & given.keys()}
    return dataclasses.replace(config, **asked | more)

  source, preprocess = changed(job.source), changed(job.preprocess)
  return changed(job, source=source, preprocess=preprocess)


def run(flags: Flags) -> Answer:
  """Runs the job; see `run_extraction`."""
  job = job_of(flags)
  from oneshot_dp.extract.cache.read import describe
  from oneshot_dp.extract.job.job import run_extraction

  cache = run_extraction(job, flags.out, flags.beam_options)
  said = describe(cache).items()
  lines = [f"{name:15}{value}" for name, value in said]
  return Answer(
    text="\n".join([f"{cache.name}: finished", *lines]),
    facts={"cache": flags.out, "metadata": cache.info.public()},
  )
