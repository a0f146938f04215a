"""`oneshot-dp predict`."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import OnDecodeError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Write into a CSV file which class each image is of.

  IMAGES: files, folders, npz, Parquet or tar files, on a disk, gs:// or s3://;
  or one cache. Numbers are logits, not calibrated probabilities.

  oneshot-dp predict heads/2 photos/new a.jpg --out predictions.csv
  """

  head: f.HeadFolder
  images: Annotated[
    Positional[tuple[str, ...]], f.flag("Images, or one cache.", "IMAGES")
  ]
  out: Annotated[Path, f.flag("Table to write; private.", "FILE.csv")]
  top_k: Annotated[int, f.flag("How many classes, the best first.", "N")] = 1
  rows: f.Rows = ""
  weights: f.Weights = None
  backbone: f.BackboneFile = None
  on_decode_error: Annotated[
    OnDecodeError, f.flag("Name all broken images, or skip them.", "fail|skip")
  ] = "fail"


def run(flags: Flags) -> Answer:
  """Writes the predictions."""
  from oneshot_dp.configs.parts import Part
  from oneshot_dp.extract.cache.read import open_cache
  from oneshot_dp.extract.storage import is_url
  from oneshot_dp.pipeline import prediction
  from oneshot_dp.pipeline.commands.inspect import is_cache
  from oneshot_dp.pipeline.heads.head_folder import read_head
  from oneshot_dp.pipeline.report.results import NOT_PRIVATE

  if is_url(flags.out) or os.path.lexists(flags.out):
    raise InputError(
      f"--out {flags.out} is there already, or no place on a disk: name a new"
      " file."
    )
  saved, part = read_head(flags.head), Part.parse(flags.rows)
  if not saved.trained.private:
    print(f"warning: this head is {NOT_PRIVATE}.", file=sys.stderr)
  caches = [path for path in flags.images if is_cache(path)]
  if caches and (flags.images[1:] or flags.weights or flags.backbone):
    raise InputError(
      f"{caches[0]} is a cache: give it alone, without images, --weights or"
      " --backbone."
    )
  broken: list[str] = []
  if caches:
    rows = prediction.of_cache(saved, open_cache(caches[0], part))
  elif not part.is_whole:
    raise InputError("--rows is for a cache, and these are images.")
  else:
    backbone = prediction.backbone_of(
      saved, backbone=flags.backbone, weights=flags.weights
    )
    rows = prediction.of_images(backbone, flags.images, broken)
  skip = flags.on_decode_error == "skip"
  how = {"top_k": flags.top_k, "skip_broken": skip}
  count = prediction.predict(flags.out, saved, rows, broken, **how)
  text = f"{flags.out}: {count:,} image{'s' * (count != 1)}"
  return Answer(
    text=f"{text}; logits are not calibrated probabilities",
    facts={"out": flags.out, "images": count, "broken": broken},
    faults=tuple(f"broken, without a class: {name}" for name in broken),
  )
