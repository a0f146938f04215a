"""The backbone whose embeddings a head reads, as its receipt says."""

import msgspec

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ComputeDtype, PreprocessConfig
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.backbones.load_backbone import load_backbone
from oneshot_dp.extract.cache.format import backbone_fingerprint
from oneshot_dp.pipeline.head_folder import SavedHead


def backbone_of(
  saved: SavedHead,
  *,
  backbone: str | None = None,
  weights: str | None = None,
  compute_dtype: ComputeDtype | None = None,
) -> Backbone:
  """Loads it; weights are found as `extract` finds them, by their SHA-256.

  Args:
    saved: the head.
    backbone: where a user's own function is now, FILE.py:FUNCTION.
    weights: where the weights are now.
    compute_dtype: of the matrix products.

  Raises:
    InputError: the head is of imported features, the weights are nowhere, or
      what was found is not what the head was trained on.
  """
  stated = saved.receipt["stated"]
  identity = stated["backbone"]
  if not identity.get("preprocess"):
    raise InputError(
      f"{saved.path} is a head of imported features ({identity['name']}), and"
      " what makes them of images is not known here: give caches of such"
      " features to `evaluate`, or use oneshot_dp.load_head."
    )
  found = load_backbone(
    backbone or identity["name"],
    weights=weights,
    weights_sha256=identity.get("weights_sha256"),
    embedding=None if identity.get("code_sha256") else identity.get("layer"),
    compute_dtype=compute_dtype,
    preprocess=msgspec.convert(identity["preprocess"], PreprocessConfig),
  )
  known = backbone_fingerprint(found.identity, found.feature_dim)
  if known != stated["backbone_fingerprint"]:
    raise InputError(
      f"{found.name} here is not the backbone that {saved.path} was trained on:"
      " its weights, code, embedding or preprocessing differ"
      f" ({known[:12]} instead of {stated['backbone_fingerprint'][:12]}):"
      " name those of the training with --weights or --backbone."
    )
  return found
