"""`oneshot-dp extract`."""

import dataclasses
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from oneshot_dp.configs.errors import InputError, check_positive
from oneshot_dp.configs.extract_config import (
  EXPERIMENTS,
  ComputeDtype,
  EmbeddingDtype,
  ExtractConfig,
  OnDecodeError,
  PreprocessConfig,
  SourceConfig,
  load_experiment,
)
from oneshot_dp.extract.backbones.names import backbone_names
from oneshot_dp.extract.places import normalize
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  BIT_DEPTH,
  PIXEL_LIMIT,
  CommandFlags,
  Flag,
)

_SOURCE = "source"
_LABELS = "labels and units"
_BACKBONE = "backbone"
_OUTPUT = "output"
_BEAM = "Beam"
# What makes a word a place and not the name of an experiment: a URL, a pattern.
_PLACE_SIGNS = set(":*{")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Embed every image of a source, once, with a frozen public backbone.

  SOURCE is a folder with a folder for each class; FILE.npz; Parquet files or
  WebDataset tars; gs:// or s3:// URLs of any of these; tfds:NAME;
  hf://datasets/OWNER/NAME[@REVISION]; or an experiment:
  {experiments}.

  Backbones:
  {backbones}.

  The same command resumes a job that was stopped.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp extract photos --backbone vit_ti16 --out caches/train",
    "oneshot-dp extract xrays --units '/(?P<patient>[^/_]+)_' --out"
    " caches/xrays",
  )
  # A job on an engine is stopped there before the command ends.
  STOP_SECONDS: ClassVar[float] = 60.0

  source: tuple[str, ...] = Flag(
    form="SOURCE",
    positional=True,
    several=True,
    group=_SOURCE,
    help="Where the images are.",
  ).required()
  split: str | None = Flag(
    form="NAME",
    group=_SOURCE,
    help="Split to embed, such as train or test (default: the only one).",
  ).default(None)
  name: str | None = Flag(
    form="NAME",
    group=_SOURCE,
    help="Public name of the data set, the same for all of its splits"
    " (default: the last part of SOURCE).",
  ).default(None)
  image: str | None = Flag(
    form="COLUMN",
    group=_SOURCE,
    help="Column, array or file extension that has the images (default: the"
    " only one that can, or image).",
  ).default(None)
  data_dir: str | None = Flag(
    form="DIR",
    group=_SOURCE,
    help="TFDS data directory (default: that of TFDS).",
  ).default(None)

  label: str | None = Flag(
    form="COLUMN",
    group=_LABELS,
    help="Column, array or file extension that has the labels (default: the"
    " only one that can, label, or cls).",
  ).default(None)
  class_names: tuple[str, ...] = Flag(
    form="NAME",
    several=True,
    group=_LABELS,
    help="Public names of all classes, where the data do not name them.",
  ).default(())
  num_classes: int | None = Flag(
    parse=int,
    form="K",
    group=_LABELS,
    help="Public number of classes, if they have no names; labels are 0 to"
    " K - 1.",
  ).default(None)
  units: str | None = Flag(
    form="FILE.csv|REGEX|COLUMN|same-image",
    group=_LABELS,
    help="Whose each image is, so that all images of one owner are protected"
    " together: a CSV file with the header file,patient, and a line for each"
    " owner of a file; a regular expression on paths, such as"
    " '/(?P<patient>[^/_]+)_'; or a column. same-image protects all copies of"
    " an image together (default: each image alone).",
  ).default(None)

  backbone: str | None = Flag(
    form="NAME|FILE.py:FUNCTION",
    group=_BACKBONE,
    help="Network that embeds the images: one of the above, or a function of"
    f" your own (default: {ExtractConfig.backbone}).",
  ).default(None)
  weights: str | None = Flag(
    form="FILE",
    group=_BACKBONE,
    help="Weights file or URL (default: the backbone's published weights).",
  ).default(None)
  weights_sha256: str | None = Flag(
    form="HEX",
    group=_BACKBONE,
    help="Expected SHA-256 of the weights file; others are refused.",
  ).default(None)
  embedding: str | None = Flag(
    form="LAYER",
    group=_BACKBONE,
    help="Layer that is the embedding, such as cls or mean (default: the"
    " backbone's usual one).",
  ).default(None)
  image_size: int | None = Flag(
    parse=int,
    form="PIXELS",
    group=_BACKBONE,
    help="Input size in pixels (default: the backbone's).",
  ).default(None)
  resize: str | None = Flag(
    form="PIXELS|square",
    group=_BACKBONE,
    help="Resize the shorter side to this before center-cropping, or `square`"
    " to ignore the aspect ratio (default: the backbone's).",
  ).default(None)
  bit_depth: int | None = (
    BIT_DEPTH.within(_SOURCE)
    .with_default_in_words(
      "all 16, and files that may use fewer are refused; predict remembers it"
    )
    .default(None)
  )
  max_pixels: int | None = (
    PIXEL_LIMIT.within(_SOURCE)
    .with_default_in_words(str(ExtractConfig.max_pixels))
    .default(None)
  )
  views: int | None = Flag(
    parse=int,
    form="N",
    group=_BACKBONE,
    help="Store the mean embedding of N random crops and flips (default: one"
    " center crop).",
  ).default(None)
  compute_dtype: ComputeDtype | None = Flag(
    form="float32|bfloat16",
    choices=("float32", "bfloat16"),
    group=_BACKBONE,
    help="Dtype of matrix multiplications (default: bfloat16 on GPU and TPU,"
    " float32 on CPU).",
  ).default(None)
  batch_size: int | None = Flag(
    parse=int,
    form="N",
    group=_BACKBONE,
    help="Images per call of the backbone (default: 16 for each CPU device, 64"
    " for each TPU chip, 256 for each GPU).",
  ).default(None)

  out: str = Flag(
    parse=normalize,
    form="CACHE",
    group=_OUTPUT,
    help="Cache to write, a folder, gs:// or s3:// URL; as private as the"
    " images.",
  ).required()
  embedding_dtype: EmbeddingDtype | None = Flag(
    form="float16|float32|bfloat16",
    choices=("float16", "float32", "bfloat16"),
    group=_OUTPUT,
    help="Dtype in which embeddings are stored (default:"
    f" {ExtractConfig.embedding_dtype}).",
  ).default(None)
  shard_rows: int | None = Flag(
    parse=int,
    form="N",
    group=_OUTPUT,
    help="Images per file of the cache; a kill loses the work on one (default:"
    f" {ExtractConfig.shard_rows}).",
  ).default(None)
  on_decode_error: OnDecodeError | None = Flag(
    form="fail|skip",
    choices=("fail", "skip"),
    group=_OUTPUT,
    help="What to do with undecodable images: stop and name all of them, or"
    f" leave them out (default: {ExtractConfig.on_decode_error}).",
  ).default(None)

  stall_seconds: int | None = Flag(
    parse=int,
    form="SECONDS",
    group=_BEAM,
    help="Abort a Beam job if no shard finishes for so long (default:"
    f" {ExtractConfig.stall_seconds}). Beam's own flags, such as"
    " --runner=FlinkRunner, are passed on.",
  ).default(None)
  beam_options: tuple[str, ...] = ()

  @classmethod
  def split_beam_options(
    cls, words: Sequence[str]
  ) -> tuple[tuple[str, ...], list[str]]:
    flags = [word for word in words if word.startswith("--")]
    if not flags:  # Beam takes a second or two to import
      return (), list(words)
    from oneshot_dp.extract.job.beam_flags import split_beam_flags

    return split_beam_flags(words)


def _wrapped(names: Iterable[str]) -> str:
  """Names in lines of a docstring's width."""
  return textwrap.fill(
    ", ".join(names), 76, subsequent_indent="  ", break_on_hyphens=False
  )


# The help lists what the tables have, so that it cannot fall behind them.
Flags.__doc__ = (Flags.__doc__ or "").format(
  experiments=_wrapped(EXPERIMENTS), backbones=_wrapped(backbone_names())
)


def job_of(flags: Flags) -> ExtractConfig:
  """Returns the job; what is not given is the experiment's, or the default.

  InputError: values that make no job.
  """
  if not flags.source:
    raise InputError("give a SOURCE, such as a folder of images; see --help.")
  # The configs check these again, by the names of their fields.
  check_positive("--num-classes", flags.num_classes)
  check_positive("--image-size", flags.image_size)
  check_positive("--max-pixels", flags.max_pixels)
  check_positive("--views", flags.views)
  check_positive("--batch-size", flags.batch_size)
  check_positive("--shard-rows", flags.shard_rows)
  check_positive("--stall-seconds", flags.stall_seconds)
  # A word that is neither a file nor looks like a place is an experiment's
  # name: a folder that happens to be called like one is read, and not taken for
  # it.
  job = ExtractConfig(source=SourceConfig(location=flags.source))
  first = flags.source[0]
  is_place = os.path.lexists(first) or bool(_PLACE_SIGNS & set(first))
  if len(flags.source) == 1 and not is_place:
    job = load_experiment(first)
  # Flags win over the experiment, and what neither says is the default of the
  # config.
  source = _with_given(
    job.source,
    split=flags.split,
    name=flags.name,
    image=flags.image,
    label=flags.label,
    class_names=flags.class_names,
    num_classes=flags.num_classes,
    units=flags.units,
    data_dir=flags.data_dir,
  )
  preprocess: PreprocessConfig = _with_given(
    job.preprocess,
    image_size=flags.image_size,
    resize=_parse_resize(flags.resize),
    bit_depth=flags.bit_depth,
  )
  return _with_given(
    job,
    source=source,
    preprocess=preprocess,
    backbone=flags.backbone,
    weights=flags.weights,
    weights_sha256=flags.weights_sha256,
    embedding=flags.embedding,
    compute_dtype=flags.compute_dtype,
    max_pixels=flags.max_pixels,
    views=flags.views,
    batch_size=flags.batch_size,
    embedding_dtype=flags.embedding_dtype,
    shard_rows=flags.shard_rows,
    on_decode_error=flags.on_decode_error,
    stall_seconds=flags.stall_seconds,
  )


def _with_given(config: Any, **values: Any) -> Any:
  """Returns a config with those values that were given."""
  # None and () are flags that were not given, so a flag cannot be set back to
  # them.
  given = {
    name: value for name, value in values.items() if value not in (None, ())
  }
  return dataclasses.replace(config, **given)


def _parse_resize(text: str | None) -> int | str | None:
  if text is None or text == "square":
    return text
  if not text.isdecimal():
    raise InputError(f"--resize {text!a} is not a number of pixels or square.")
  return int(text)


def run(flags: Flags) -> Answer:
  """Runs the job; see `run_extraction`."""
  job = job_of(flags)
  if flags.backbone is None:
    print(f"--backbone is not given: {job.backbone} is taken", file=sys.stderr)
  from oneshot_dp.extract.cache.duplicates import count_duplicates
  from oneshot_dp.extract.cache.read import ABSENT, describe
  from oneshot_dp.extract.job.job import run_extraction

  cache = run_extraction(job, flags.out, flags.beam_options)
  lines = [f"{cache.name}: finished"]
  duplicates = count_duplicates(cache)
  for name, value in (describe(cache) | duplicates).items():
    if value != ABSENT:
      lines.append(f"{name:18}{value}")
  return Answer(
    text="\n".join(lines),
    facts={
      "cache": flags.out,
      "metadata": cache.info.public(),
      "duplicates": duplicates,
    },
  )
