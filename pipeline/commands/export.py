"""`oneshot-dp export`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Write a head and its backbone as a model for other libraries.

  StableHLO (jax.export) of the head, alone and with its backbone; timm's form,
  which transformers opens, for ViT, DeiT, DINOv2, SigLIP, BiT; receipt, card.

  oneshot-dp export heads/2 --to model
  """

  head: f.HeadFolder
  to: Annotated[Path, f.flag("Folder to write; not there yet.", "DIR")]
  weights: f.Weights = None
  backbone: f.BackboneFile = None
  registry: Annotated[
    f.Switch, f.flag("Also a draft for the DP Deployments Registry.")
  ] = False
  ledger: f.LedgerFile = None


def run(flags: Flags) -> Answer:
  """Writes it."""
  from oneshot_dp.pipeline.exports import LEDGER_NOTICES, export_head
  from oneshot_dp.pipeline.heads.head_folder import read_head
  from oneshot_dp.pipeline.heads.verify import verify_head
  from oneshot_dp.pipeline.ledger.ledger import open_existing_ledger
  from oneshot_dp.pipeline.prediction import backbone_of
  from oneshot_dp.pipeline.report.results import NOT_PRIVATE

  saved = read_head(flags.head)
  if not saved.trained.private:
    raise InputError(f"{flags.head} is {NOT_PRIVATE}: it is not exported.")
  verdict = verify_head(flags.head, open_existing_ledger(flags.ledger))
  try:
    backbone = backbone_of(
      saved,
      backbone=flags.backbone,
      weights=flags.weights,
      compute_dtype="float32",
    )
  except InputError as error:
    if flags.backbone or flags.weights:
      raise
    backbone = str(error)
  files, notes = export_head(
    flags.to, saved, verdict, backbone, with_registry=flags.registry
  )
  notice = LEDGER_NOTICES[verdict.status]
  lines = [*filter(None, [notice]), f"{flags.to}: {', '.join(files)}", *notes]
  facts = {"out": flags.to, "files": files, "notes": notes}
  facts |= {"vouched": verdict.vouched}
  return Answer(text="\n".join(lines), facts=facts)
