"""`oneshot-dp predict`."""

import contextlib
import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional, Suppress

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.commands.checks import (
  check_beam_options,
  check_kind,
)
from oneshot_dp.pipeline.commands.flags import (
  BackboneFile,
  LedgerDir,
  NotTrainedOn,
  Weights,
)
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Say which classes images are of: image files, folders, npz, Parquet.

  The backbone and its preprocessing are those of the receipt. Writes a line
  for each image, whose numbers are logits: they compare the classes of one
  image, and are no probabilities. With --calibration-cache they are.

  More than 2,048 images are a job like `extract`, which resumes when the same
  command is run again; flags that are not listed here go to Beam. A cache of
  features may stand in place of the images; its rows are named by their ids.

  Example: oneshot-dp predict heads/epsilon-4 photos/new --out predictions.csv

  Example: oneshot-dp predict heads/epsilon-4 a.jpg b.jpg --out predictions.csv
  --top-k 3 --backbone.weights dinov2.safetensors
  --calibration-cache caches/public
  """

  head: Positional[Path]
  """Directory of the head."""
  images: Positional[tuple[str, ...]]
  """Image files, folders of them at any depth, npz, Parquet, Arrow or tar
  files, on a disk or in gs:// or s3://; or one feature cache."""
  out: Path
  """The CSV file, not there yet; only its owner may read it."""
  top_k: int = 1
  """Classes of each image, the best first."""
  weights: Weights = None
  backbone: BackboneFile = None
  batch_size: int | None = None
  """Images per device call; default: what suits the devices."""
  calibration_cache: Path | None = None
  """A labelled cache of public images like these, which the head was not
  trained on: probabilities are softmax(logits / T), with the T that fits its
  labels best."""
  ledger_dir: LedgerDir = None
  not_trained_on: NotTrainedOn = False
  beam_options: Suppress[tuple[str, ...]] = ()


def run(flags: Flags) -> Answer:
  """Writes the predictions."""
  from oneshot_dp.configs.extract_config import ExtractConfig, UnlabelledSource
  from oneshot_dp.extract.cache.info import INFO_FILE
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.extract.storage.anywhere import is_file
  from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
  from oneshot_dp.pipeline.runs import output_dir
  from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
  from oneshot_dp.pipeline.saved_head.verify import read_sound_head
  from oneshot_dp.pipeline.serving.embedding import (
    backbone_config,
    embedded_images,
  )
  from oneshot_dp.pipeline.serving.predict import calibrate, write_predictions

  check_beam_options(flags.beam_options, [Flags])
  if not flags.images:
    raise InputError("no images: name files, folders of them, or a cache.")
  output_dir.check_absent(flags.out)
  if flags.out.is_dir():
    raise InputError(f"--out {flags.out} is a folder; name the CSV file.")
  check_kind(flags.head, "predict")
  saved = read_sound_head(flags.head, by_digests=True)
  space = FeatureSpace.of_receipt(flags.head, saved.receipt)
  if not 1 <= flags.top_k <= len(space.class_names):
    raise InputError(
      f"--top-k {flags.top_k} must be from 1 to the head's"
      f" {len(space.class_names)} classes."
    )
  if not saved.receipt.get("private"):
    print(f"warning: this head is {NOT_PRIVATE}.", file=sys.stderr)
  calibration = None
  if flags.calibration_cache is not None:
    labelled = open_cache(flags.calibration_cache)
    calibration = calibrate(
      saved,
      flags.head,
      labelled,
      flags.ledger_dir,
      insisted=flags.not_trained_on,
    )
  caches = [path for path in flags.images if is_file(f"{path}/{INFO_FILE}")]
  with contextlib.ExitStack() as stack:
    if caches:
      if flags.images[1:] or flags.weights or flags.backbone:
        raise InputError(
          f"{caches[0]} is a cache of features: give it alone, without images,"
          " --backbone.weights or --backbone.name."
        )
      cache = open_cache(caches[0])
      space.check_same_embeddings(FeatureSpace.of_cache(cache.path, cache.info))
      rows = ((b.embedding, b.example_id) for b in cache.blocks())
      name_of, expected = str, None
    else:
      data = saved.receipt["data"]
      backbone, preprocess = backbone_config(
        data, flags.backbone, flags.weights
      )
      job = ExtractConfig(
        source=UnlabelledSource(paths=flags.images),
        split="all",
        backbone=backbone,
        preprocess=preprocess,
        batch_size=flags.batch_size,
        on_decode_error="skip",
      )
      work = flags.out.with_name(f"{flags.out.name}.embeddings")
      source, rows = stack.enter_context(
        embedded_images(job, data, work, flags.beam_options)
      )
      name_of, expected = source.where, len(source)
    written, undecodable = write_predictions(
      flags.out,
      saved.head,
      space.class_names,
      rows,
      name_of,
      expected=expected,
      top_k=flags.top_k,
      temperature=calibration.temperature if calibration else None,
    )
  text = f"{flags.out}: {written:,} image{'s' * (written != 1)}"
  if undecodable:
    text += f", {undecodable:,} of them undecodable and without a class"
  if calibration:
    text += (
      f"\nprobabilities are softmax(logits / {calibration.temperature:.4g}): on"
      f" the {calibration.num_examples:,} calibration rows the best class has"
      f" {100 * calibration.confidence:.1f} % on average, and is right in"
      f" {100 * calibration.accuracy:.1f} %"
    )
  return Answer(
    text=text,
    facts={
      "out": flags.out,
      "images": written,
      "undecodable": undecodable,
      "calibration": calibration,
    },
    failure=RunError(f"{flags.out}: no image could be decoded.")
    if written and written == undecodable
    else None,
  )
