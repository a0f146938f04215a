"""`oneshot-dp export`."""

import dataclasses
from pathlib import Path

from tyro.conf import Positional

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.commands.checks import check_kind
from oneshot_dp.pipeline.commands.flags import (
  BackboneFile,
  LedgerDir,
  NotTrainedOn,
  Weights,
)
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Write a head and its backbone as a model for other libraries.

  A directory for the Hugging Face Hub, which transformers loads with
  AutoModelForImageClassification (ViT, DeiT, DINOv2, SigLIP and BiT), one file
  for jax.export (StableHLO, of any backbone), a model card and the receipt.

  Example: oneshot-dp export heads/epsilon-4 --to model --eval-cache caches/test
  """

  head: Positional[Path]
  """Directory of the head, which must be private."""
  to: Path
  """Directory of the model, not there yet."""
  weights: Weights = None
  backbone: BackboneFile = None
  eval_cache: Path | None = None
  """A labelled cache whose labels are public, for the accuracy on the card."""
  ledger_dir: LedgerDir = None
  not_trained_on: NotTrainedOn = False


def run(flags: Flags) -> Answer:
  """Writes it."""
  from oneshot_dp.extract.backbones.registry import load_backbone
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
  from oneshot_dp.pipeline.ledger.ledger import Ledger
  from oneshot_dp.pipeline.runs import output_dir
  from oneshot_dp.pipeline.runs.evaluation import (
    check_not_trained_on,
    evaluate_on_public_labels,
  )
  from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
  from oneshot_dp.pipeline.saved_head.verify import read_sound_head
  from oneshot_dp.pipeline.serving.embedding import (
    backbone_config,
    check_backbone,
  )
  from oneshot_dp.pipeline.serving.export import export_head

  output_dir.check_absent(flags.to)
  check_kind(flags.head, "export")
  saved = read_sound_head(flags.head, flags.ledger_dir)
  if saved.receipt.get("private") is not True:
    raise InputError(f"{flags.head} is {NOT_PRIVATE}: it is not exported.")
  space = FeatureSpace.of_receipt(flags.head, saved.receipt)
  data = saved.receipt["data"]
  config, preprocess = backbone_config(data, flags.backbone, flags.weights)
  if config.embedding is not None:  # else it decides for itself
    config = dataclasses.replace(config, compute_dtype="float32")
  backbone = load_backbone(config, preprocess)
  check_backbone(data, backbone)
  accuracy = None
  if flags.eval_cache is not None:
    cache = open_cache(flags.eval_cache)
    space.check_evaluates_on(FeatureSpace.of_cache(cache.path, cache.info))
    ledger = Ledger(space.rows[0], flags.ledger_dir)
    check_not_trained_on(ledger, cache, insisted=flags.not_trained_on)
    (accuracy,) = evaluate_on_public_labels([saved.head], cache).scores
  files, why_not = export_head(flags.to, flags.head, saved, backbone, accuracy)
  return Answer(
    text=f"{flags.to}: {', '.join(files)}" + (why_not and f"\n{why_not}"),
    facts={"out": flags.to, "files": files, "accuracy": accuracy}
    | {"no_transformers": why_not},
  )
