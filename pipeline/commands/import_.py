"""`oneshot-dp import`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Make a cache of embeddings that another program computed.

  FILE: .npz, .parquet or a folder of Parquet, with embedding [n, d], label and
  perhaps example_id. In an npz, names may begin with train_, and there may be
  class_names.

  oneshot-dp import vectors.parquet --out caches/train --num-classes 10
  """

  file: Annotated[Positional[Path], f.flag("The embeddings.", "FILE")]
  out: Annotated[Path, f.flag("Cache to write; private.", "CACHE")]
  dataset_name: Annotated[
    str | None, f.flag("Public name of the data; else the file's.", "NAME")
  ] = None
  split: Annotated[str, f.flag("Public name of the split.", "NAME")] = "train"
  num_classes: Annotated[
    int | None, f.flag("How many classes there are; public.", "K")
  ] = None
  class_names: Annotated[
    tuple[str, ...], f.flag("Names of the classes 0, 1, …", "NAME")
  ] = ()
  unit_name: Annotated[
    str | None, f.flag("Who owns several rows (patient): a column.", "NAME")
  ] = None
  backbone_name: Annotated[str, f.flag("What made the embeddings.", "NAME")] = (
    "imported features"
  )


def run(flags: Flags) -> Answer:
  """Imports the file."""
  from oneshot_dp.pipeline.import_table import import_table

  info = import_table(**vars(flags)).info
  text = (
    f"{flags.out}: {info.dataset}, split {info.split},"
    f" {info.source_num_examples:,} rows of {info.feature_dim} values,"
    f" {info.num_classes} classes"
  )
  if info.unit != "example":
    text += f"; protected as one: all rows of a {info.unit}"
  return Answer(text=text, facts={"cache": flags.out, "info": info.public()})
