"""`oneshot-dp export`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.places import parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  BACKBONE_FILE,
  HEAD_FOLDER,
  LEDGER,
  WEIGHTS,
  CommandFlags,
  Flag,
)

if TYPE_CHECKING:
  from oneshot_dp.extract.backbones.backbone import Backbone
  from oneshot_dp.pipeline.heads.head_folder import SavedHead


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Write a head and its backbone as a model for other libraries.

  Writes StableHLO (jax.export) of the head, alone and with its backbone; the
  form of timm, which transformers opens too, for ViT, DeiT, DINOv2, SigLIP and
  BiT; receipt and model card.
  """

  EXAMPLES: ClassVar = ("oneshot-dp export heads/2 --to model",)

  head: Path = HEAD_FOLDER.required()
  to: Path = Flag(
    parse=parse_place,
    form="DIR",
    help="Folder to write, on a disk, gs:// or s3://; it must not exist.",
  ).required()
  weights: str | None = WEIGHTS.default(None)
  backbone: str | None = BACKBONE_FILE.default(None)
  registry: bool = Flag(
    help="Also write a draft for the Differential Privacy Deployments Registry."
  ).off()
  ledger: Path | None = LEDGER.default(None)


def run(flags: Flags) -> Answer:
  """Writes the model."""
  from oneshot_dp.pipeline.exports import LEDGER_NOTICES, export_head
  from oneshot_dp.pipeline.heads.head_folder import read_head
  from oneshot_dp.pipeline.heads.verify import verify_saved_head
  from oneshot_dp.pipeline.ledger.ledger import open_existing_ledger
  from oneshot_dp.pipeline.report.results import NOT_PRIVATE

  # What is exported is meant to leave. Weights without noise never do, whatever
  # the ledger says; a head that the ledger does not know goes with that
  # sentence.
  saved = read_head(flags.head)
  if not saved.trained.private:
    raise InputError(f"{flags.head} is {NOT_PRIVATE}: it is not exported.")
  verdict = verify_saved_head(saved, open_existing_ledger(flags.ledger))
  files, notes = export_head(
    flags.to,
    saved,
    verdict,
    _find_backbone(saved, flags),
    with_registry=flags.registry,
  )
  # What the ledger says comes first, as it decides whether the files may leave.
  lines = [f"{flags.to}: {', '.join(files)}", *notes]
  notice = LEDGER_NOTICES[verdict.status]
  if notice:
    lines.insert(0, notice)
  return Answer(
    text="\n".join(lines),
    facts={
      "out": flags.to,
      "files": files,
      "notes": notes,
      "vouched": verdict.vouched,
    },
  )


def _find_backbone(saved: "SavedHead", flags: Flags) -> "Backbone | str":
  """Returns the backbone, or why it is not at hand: then the head goes alone.

  InputError: a backbone or weights were named, and do not serve.
  """
  from oneshot_dp.pipeline.prediction import UNKNOWN_EMBEDDINGS, backbone_of

  is_named = flags.backbone or flags.weights
  if not saved.stated["backbone"].get("preprocess") and not is_named:
    return f"the head alone is exported: {UNKNOWN_EMBEDDINGS}."
  try:
    return backbone_of(
      saved,
      backbone=flags.backbone,
      weights=flags.weights,
      compute_dtype="float32",
    )
  except InputError as error:
    if is_named:
      raise
    return str(error)
