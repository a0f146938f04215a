"""`oneshot-dp import`."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from oneshot_dp.extract.places import parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import CommandFlags, Flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Import precomputed embeddings into a cache.

  FILE is .npz, .parquet or a folder of such files, with embedding [n, d], label
  and perhaps example_id. In an npz, names may begin with train_, and there may
  be class_names. Splits and classes are found as `extract` finds them.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp import vectors.parquet --out caches/train --num-classes 10",
  )

  file: Path = Flag(
    parse=parse_place,
    form="FILE",
    positional=True,
    help="File or folder with the embeddings.",
  ).required()
  out: Path = Flag(
    parse=parse_place,
    form="CACHE",
    help="Cache to write; as private as the embeddings.",
  ).required()
  dataset_name: str | None = Flag(
    form="NAME",
    help="Public name of the data set (default: the file's name).",
  ).default(None)
  split: str | None = Flag(
    form="NAME",
    help="Split to import, by the names of files, folders and arrays; where"
    " these tell of none, its public name (default: the only one, or train).",
  ).default(None)
  embedding: str | None = Flag(
    form="COLUMN", help="Column of the embeddings (default: embedding)."
  ).default(None)
  label: str | None = Flag(
    form="COLUMN", help="Column of the labels (default: label)."
  ).default(None)
  num_classes: int | None = Flag(
    parse=int,
    form="K",
    help="Public number of classes, if they have no names; labels are 0 to"
    " K - 1 (default: the file's class names).",
  ).default(None)
  class_names: tuple[str, ...] = Flag(
    form="NAME",
    several=True,
    help="Public names of all classes, in the order of the labels (default:"
    " the file's).",
  ).default(())
  unit_name: str | None = Flag(
    form="COLUMN",
    help="Column that says who owns a row, such as patient; all rows of one"
    " owner are protected together (default: each row alone).",
  ).default(None)
  units: Literal["same-image"] | None = Flag(
    form="same-image",
    choices=("same-image",),
    help="Protect all rows of one embedding together, as rows of one image;"
    " embeddings that differ in a bit are two (default: each row alone).",
  ).default(None)
  backbone_name: str = Flag(
    form="NAME", help="Public name of what computed the embeddings."
  ).default("imported features")


def run(flags: Flags) -> Answer:
  """Imports the file."""
  from oneshot_dp.extract.cache.duplicates import count_duplicates
  from oneshot_dp.pipeline.import_table import import_table

  cache = import_table(
    file=flags.file,
    out=flags.out,
    dataset_name=flags.dataset_name,
    split=flags.split,
    embedding=flags.embedding,
    label=flags.label,
    num_classes=flags.num_classes,
    class_names=flags.class_names,
    unit_name=flags.unit_name,
    units=flags.units,
    backbone_name=flags.backbone_name,
  )
  info = cache.info
  text = (
    f"{flags.out}: {info.dataset}, split {info.split},"
    f" {info.source_num_examples:,} embeddings of dimension"
    f" {info.feature_dim}, {info.num_classes} classes"
  )
  if info.unit != "example":
    text += f"; protected together: all rows of a {info.unit}"
  duplicates = count_duplicates(cache)
  for name, value in duplicates.items():
    text += f"\n{name}: {value}"
  return Answer(
    text=text,
    facts={
      "cache": flags.out,
      "info": info.public(),
      "duplicates": duplicates,
    },
  )
