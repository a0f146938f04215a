"""The privacy statement that travels with every head, and how it is made."""

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.extract.cache.identity import BackboneIdentity
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.linear_dp import public_start
from oneshot_dp.linear_dp.accounting.sections import (
  composition_section,
  privacy_section,
)
from oneshot_dp.linear_dp.trainer import MEANS, UNCLIPPED, WHOLE, TrainedHead
from oneshot_dp.pipeline.saved_head.public_record import ASSUMPTION, SETTING

FORMAT_VERSION = 3

_ASSUMPTIONS = (
  "n (num_examples), the number of classes, their names and the names of the"
  " data set and split are public.",
  "The backbone and its preprocessing do not depend on the private data, and"
  " embed every image by itself.",
)
_ROWS_ARE_UNITS = (
  "One row of the cache is one privacy unit; a person with two rows has twice"
  " the influence."
)
_CLASSES_OF_LABELS = (
  "The number of classes was read off the private labels when the features were"
  " imported; the guarantee holds only if it is public anyway."
)
_UNCHARGED = (
  "No ledger was charged for this head: nobody counts what else was released of"
  " the same rows, and every release adds up."
)
NOT_PROTECTED = (
  "The data that the head is evaluated on: its labels are treated as public,"
  " unless the evaluation had a budget of its own (--private-eval).",
  "Any choice (of head, epsilon, data or backbone) made by looking at private"
  " results that are not in the ledger.",
  "The images that the backbone was pretrained on, and any other public set.",
  "The time a run takes, and the memory and disks of the machine it runs on.",
  "The feature cache itself: it holds the private data and must stay private.",
)
FIELDS = {
  "": (
    *("format_version", "private", "privacy", "composition", "mechanism"),
    *("data", "training", "head_sha256", "assumptions", "not_protected"),
    "software",
  ),
  "data": (
    *("dataset", "dataset_version", "split", "num_examples", "class_names"),
    *("num_classes_source", "cache_fingerprint", "backbone", "preprocess"),
    *("views", "backbone_fingerprint"),
  ),
  "data.backbone": tuple(f.name for f in dataclasses.fields(BackboneIdentity)),
}
"""All that a receipt may say, section by section; the others follow from the
mechanism."""
SOFTWARE = ("oneshot-dp", "dp-accounting", "jax", "optax", "numpy")


def make_receipt(
  trained: TrainedHead, cache: CacheInfo, *, head_sha256: str
) -> dict[str, Any]:
  """The receipt of one head, as JSON.

  `cache` is known by its public metadata; `private` is False for baselines and
  seeded noise.
  """
  statement, mechanism = trained.statement, trained.mechanism.as_json()
  plan = trained.plan
  return {
    "format_version": FORMAT_VERSION,
    "private": statement.is_private,
    "privacy": privacy_section(
      statement, privacy_unit=cache.privacy_unit, sampling=plan.sampling
    ),
    "composition": {
      **composition_section(plan),
      "ledger_entry": trained.ledger_entry or None,
    },
    "mechanism": mechanism,
    "data": {
      "dataset": cache.dataset,
      "dataset_version": cache.dataset_version,
      "split": cache.split,
      "num_examples": cache.public_num_examples,
      "class_names": list(cache.class_names),
      "num_classes_source": cache.num_classes_source,
      "cache_fingerprint": cache.fingerprint,
      "backbone": dataclasses.asdict(cache.backbone),
      "preprocess": dict(cache.preprocess),
      "views": cache.views,
      "backbone_fingerprint": cache.backbone_fingerprint,
    },
    "training": dict(trained.settings),
    "head_sha256": head_sha256,
    "assumptions": assumptions(
      cache.num_classes_source,
      cache.privacy_unit,
      mechanism,
      trained.settings,
      charged=bool(trained.ledger_entry),
    ),
    "not_protected": list(NOT_PROTECTED),
    "software": {p: importlib.metadata.version(p) for p in SOFTWARE},
  }


def assumptions(
  num_classes_source: str,
  privacy_unit: str,
  mechanism: dict[str, Any],
  training: Mapping[str, Any],
  *,
  charged: bool,
) -> list[str]:
  """What the guarantee rests on, in words; `charged` by a ledger or not."""
  of_units = _ROWS_ARE_UNITS
  if privacy_unit != EXAMPLE_UNIT:
    of_units = (
      f"All rows of one {privacy_unit} are one privacy unit, by the unit_id"
      " that came with the data, and the guarantee covers all of them together;"
      f" {how_bounded(mechanism['clipped'], mechanism['rows_per_unit'])}."
    )
  of_labels = num_classes_source not in ("class_names", "flag")
  return [
    *_ASSUMPTIONS,
    of_units,
    *([_CLASSES_OF_LABELS] if of_labels else []),
    *([ASSUMPTION] if SETTING in training else []),
    *([public_start.ASSUMPTION] if public_start.SETTING in training else []),
    *([] if charged else [_UNCHARGED]),
  ]


def how_bounded(clipped: str, rows_per_unit: int) -> str:
  """What keeps a unit of many rows from having their influence."""
  return {
    UNCLIPPED: "nothing bounds their influence",
    "unit": "all are summed, and the sum of each is clipped as one vector",
    WHOLE: "all are trained on or all held out and counted, and all of a unit"
    " together weigh as much as one row either way",
    MEANS: "those of a class are averaged, and weighed by how many they are, so"
    " that all of a unit together weigh as much as one row",
  }.get(
    clipped, f"at most {rows_per_unit} of each are summed, chosen by ids alone"
  )
