"""`oneshot-dp predict`."""

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from oneshot_dp.configs.errors import InputError, check_positive, format_count
from oneshot_dp.configs.extract_config import MAX_PIXELS, OnDecodeError
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.places import normalize, parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  BACKBONE_FILE,
  BIT_DEPTH,
  HEAD_FOLDER,
  PIXEL_LIMIT,
  ROWS,
  WEIGHTS,
  CommandFlags,
  Flag,
)

if TYPE_CHECKING:
  from oneshot_dp.pipeline.heads.head_folder import SavedHead
  from oneshot_dp.pipeline.prediction import Named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Label images with a head, and write the classes into a CSV file.

  IMAGES are files, folders, npz, Parquet or tar files, on a disk, gs:// or
  s3://; or one cache. Scores are logits, not probabilities.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp predict heads/2 photos/new a.jpg --out predictions.csv",
  )

  head: Path = HEAD_FOLDER.required()
  images: tuple[str, ...] = Flag(
    parse=normalize,
    form="IMAGES",
    positional=True,
    several=True,
    help="Images to label, or one cache.",
  ).required()
  out: Path = Flag(
    parse=parse_place,
    form="FILE.csv",
    help="Table to write, or - for standard output; as private as the images.",
  ).required()
  overwrite: bool = Flag(
    help="Replace the table if it exists already (default: refuse)."
  ).off()
  top_k: int = Flag(
    parse=int, form="K", help="How many classes to list, the best first."
  ).default(1)
  rows: str = ROWS.default("")
  weights: str | None = WEIGHTS.default(None)
  backbone: str | None = BACKBONE_FILE.default(None)
  bit_depth: int | None = BIT_DEPTH.with_default_in_words(
    "that of the training"
  ).default(None)
  max_pixels: int = PIXEL_LIMIT.default(MAX_PIXELS)
  on_decode_error: OnDecodeError = Flag(
    form="fail|skip",
    choices=("fail", "skip"),
    help="What to do with undecodable images: stop and name all of them, or"
    " leave them out.",
  ).default("fail")


def run(flags: Flags) -> Answer:
  """Writes the predictions."""
  from oneshot_dp.pipeline.heads.head_folder import read_head
  from oneshot_dp.pipeline.prediction import passed_over, predict, write_table
  from oneshot_dp.pipeline.report.results import NOT_PRIVATE

  check_positive("--max-pixels", flags.max_pixels)
  # The place is tried first: embedding may take hours.
  to_stdout = str(flags.out) == "-"
  if not to_stdout:
    _check_out(flags)
  saved = read_head(flags.head)
  if not saved.trained.private:
    print(f"WARNING: this head is {NOT_PRIVATE}.", file=sys.stderr)
  # Rows are embedded while the table is made, and broken images are found only
  # then: the list fills up as `predict` reads the rows.
  broken: list[str] = []
  rows, is_cache = _open_rows(flags, saved, broken)
  others = [] if is_cache else passed_over(flags.images)
  table, count = predict(
    saved,
    rows,
    broken,
    others=others,
    top_k=flags.top_k,
    skip_broken=flags.on_decode_error == "skip",
  )
  counted = format_count(count, "row" if is_cache else "image")
  text = f"{flags.out}: {counted}; scores are logits, not probabilities"
  if to_stdout:
    # A terminal is shown no carriage returns: `Answer` would escape those that
    # end the lines of a CSV file.
    text = table.replace("\r\n", "\n").removesuffix("\n")
  else:
    # Where this fails, the table is not printed instead: it is as private as
    # the images, and standard output may be a log.
    write_table(flags.out, table, overwrite=flags.overwrite)
  # Nothing is dropped in silence: what has no class is named here, and has a
  # line in the table.
  faults = [f"broken, without a class: {name}" for name in broken]
  faults += [f"passed over, without a class: {name}" for name in others]
  facts: dict[str, object] = {
    "out": flags.out,
    "images": count,
    "broken": broken,
  }
  if to_stdout:
    facts["table"] = table
  return Answer(
    text=text,
    facts=facts,
    faults=tuple(faults),
  )


def _check_out(flags: Flags) -> None:
  """Refuses a place that cannot take the table, before anything is embedded."""
  from oneshot_dp.extract import places

  if flags.out.is_dir():
    raise InputError(f"--out {flags.out} is a folder: name a new file.")
  if places.exists(flags.out) and not flags.overwrite:
    raise InputError(
      f"--out {flags.out} already exists: name a new file, or give --overwrite."
    )
  places.check_creatable(flags.out)


def _open_rows(
  flags: Flags, saved: "SavedHead", broken: list[str]
) -> "tuple[Iterable[Named], bool]":
  """Opens a cache, or embeds images; adds names of broken ones to a list.

  Returns the rows, and whether they are a cache's.
  """
  from oneshot_dp.extract.cache.read import open_cache
  from oneshot_dp.pipeline import prediction
  from oneshot_dp.pipeline.commands.inspect import is_cache

  part = Part.parse(flags.rows)
  # A cache is rows already, of one backbone that the receipt must name; images
  # still need the network.
  caches = [path for path in flags.images if is_cache(path)]
  if not caches:
    if not part.is_whole:
      raise InputError("--rows is for a cache, and these are images.")
    backbone = prediction.backbone_of(
      saved,
      backbone=flags.backbone,
      weights=flags.weights,
      bit_depth=flags.bit_depth,
    )
    rows = prediction.of_images(
      backbone, flags.images, broken, flags.max_pixels
    )
    return rows, False
  is_about_images = flags.weights or flags.backbone or flags.bit_depth
  if len(flags.images) > 1 or is_about_images:
    raise InputError(
      f"{caches[0]} is a cache: give it alone, without images, --weights,"
      " --backbone or --bit-depth."
    )
  return prediction.of_cache(saved, open_cache(caches[0], part)), True
