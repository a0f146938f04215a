"""What the Differential Privacy Deployments Registry asks about a head.

The record has the fields of tier 3 of its schema (opendp/deployments-registry-
data on GitHub, schemas/deployments-schema.yaml, of 2026; Nanayakkara, Ghazi &
Vadhan, arXiv 2509.13509), filled in from a receipt. What no receipt knows
begins with FILL IN.
"""

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any

from oneshot_dp.configs.extract_config import EXAMPLE

_FILL_IN = "FILL IN: "


def registry_record(receipt: dict[str, Any], date: datetime.date) -> dict:
  """The record, of a private head published on this day; a draft of tier 3."""
  stated, follows = receipt["stated"], receipt["follows"]
  unit, dataset = stated["privacy_unit"], stated["dataset"]
  backbone = stated["backbone"]["name"]
  slug = re.sub(r"[^a-z0-9]+", "-", f"{dataset}-{backbone}-head".lower())
  releases = ", ".join(
    f"{each['count']} x {each['name']}" for each in stated["releases"]
  )
  whose = unit if unit == EXAMPLE else f"{unit}, with all its examples,"
  return {
    "url_slug": f"{slug.strip('-')}-{date.year}",
    "status": "Draft",
    "tier": 3,
    "deployment": {
      "basic": {
        "name": f"Image classifier for {dataset}",
        "data_curators": [f"{_FILL_IN}who publishes it"],
        "intended_use": f"{_FILL_IN}what it is for",
        "data_product_type": "Machine learning model",
        "data_product_region": f"{_FILL_IN}whom the images are of",
        "description": f"A linear head of {stated['num_classes']} classes on"
        f" embeddings of the public backbone {backbone}, trained on"
        f" {stated['split']}{stated['rows']} of {dataset}.",
        "publication_date": date.isoformat(),
      },
      "dp_variant": {
        "variant_name": "Approximate DP",
        "data_domain": f"Sets of up to {stated['num_examples']} labelled"
        f" embeddings of {stated['feature_dim']} values.",
        "unprotected_quantities": f"The number of examples and the names of the"
        f" classes (known from: {stated['num_classes_source']}).",
      },
      "privacy_loss": {
        "privacy_unit": unit,
        "privacy_unit_details": f"Adjacent data sets: one {whose}"
        " is in the data or nothing is in its place"
        f" ({stated['neighboring_relation']}). If another is in its place,"
        f" epsilon is {follows['epsilon_if_replaced']}.",
        "privacy_parameters": {
          "epsilon": follows["epsilon"],
          "delta": stated["delta"],
        },
        "privacy_parameters_details": f"mu^2 = {follows['mu_squared']} of"
        f" Gaussian DP, converted by {stated['accountant']}; this head alone.",
      },
      "deployment_model": {
        "model_name": "Central",
        "actors": "The curator holds the images; nobody else need be trusted.",
        "release_type": "One release",
        "release_type_details": f"{_FILL_IN}what else of these data is or will"
        " be released",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
      },
      "accounting": {
        "post_processing": "The head is computed from noisy sums and public"
        " values alone.",
        "composition": "Full-batch Gaussian mechanisms, whose mu^2 add up:"
        f" {releases}; as one of noise multiplier"
        f" {follows['noise_multiplier']:.6g}. No sampling.",
      },
      "implementation": {
        "preprocessing_and_hyperparameter_tuning": "A backbone trained on other"
        " data embeds every image by itself. Settings:"
        f" {json.dumps(stated['options'])}. {_FILL_IN}how they were chosen",
        "mechanisms": "Gaussian noise, sampled exactly and rounded to integers,"
        f" on exact sums of integers (noise: {stated['noise_source']});"
        f" oneshot-dp {stated['libraries'].get('oneshot-dp', '')}.",
        "justification": f"{_FILL_IN}why these parameters",
      },
      "administrative": {
        "sources": f"SHA-256 of head.safetensors: {stated['weights_sha256']}",
        "registry_authors": [f"{_FILL_IN}who fills this in"],
      },
    },
  }


def as_yaml(record: dict[str, Any]) -> str:
  """YAML of maps, lists, strings and numbers; strings are quoted as in JSON."""
  return "\n".join(_lines(record, "")) + "\n"


def _lines(value: dict[str, Any], indent: str) -> Iterator[str]:
  for key, each in value.items():
    if isinstance(each, dict):
      yield f"{indent}{key}:"
      yield from _lines(each, indent + "  ")
    elif isinstance(each, list):
      yield f"{indent}{key}:"
      yield from (f"{indent}  - {json.dumps(item)}" for item in each)
    else:
      # To YAML 1.1 a number without a point is none: 1e-05.
      text = re.sub(r"^(\d+)e", r"\1.0e", json.dumps(each))
      yield f"{indent}{key}: {text}"
