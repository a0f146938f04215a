"""A head, with its backbone where that is at hand, for other libraries.

DIR/embeddings_to_logits.jax_export   StableHLO of the head: float32 [b, d]
DIR/images_to_logits.jax_export       StableHLO of backbone and head
DIR/model.safetensors, config.json    both in timm's form, of what timm has
DIR/receipt.json, README.md           what was promised, and how to load it
DIR/deployment.yaml                   a draft for the Deployments Registry
"""

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.files import disk_errors
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.pipeline.heads.head_folder import SavedHead
from oneshot_dp.pipeline.heads.receipt import card, filled_in
from oneshot_dp.pipeline.heads.verify import Verdict
from oneshot_dp.pipeline.ledger.staged_output import StagedOutput
from oneshot_dp.pipeline.report.results import as_json
from oneshot_dp.pipeline.timm_form import timm_files

HEAD_FILE = "embeddings_to_logits.jax_export"
IMAGES_FILE = "images_to_logits.jax_export"
NOBODY_VOUCHES = {
  True: "",
  False: "**NOT VOUCHED FOR: by the ledger, these files were not paid for.**",
  None: "Nobody vouches for this copy: no ledger was at hand.",
}
"""By what the ledger said."""
_PLATFORMS = ("cpu", "cuda", "tpu")


def export_head(
  out: Path,
  saved: SavedHead,
  verdict: Verdict,
  backbone: Backbone | str,
  *,
  with_registry: bool = False,
) -> tuple[list[str], list[str]]:
  """Writes DIR, whole or not at all.

  Returns the names of its files, and why there is no backbone or timm's form.
  `backbone`, in float32, or why it is not at hand. All that travels is public.

  Raises:
    InputError: `out` is there already.
    RunError: the disk refuses.
  """
  stated, notes, images = saved.receipt["stated"], [], None
  logits, shape = saved.head.ranking().logits, (saved.head.feature_dim,)
  files = {HEAD_FILE: _serialized(logits, shape, jnp.float32)}
  if isinstance(backbone, str):
    notes.append(backbone)
  else:
    images = backbone.preprocessing
    files[IMAGES_FILE] = images_program(backbone, saved.head)
    try:
      files |= timm_files(backbone, saved.head, stated["class_names"])
    except InputError as error:
      notes.append(str(error))
  files["receipt.json"] = as_json(saved.receipt)
  if with_registry:
    files["deployment.yaml"] = deployment(saved.receipt).encode()
  files["README.md"] = filled_in(
    "model.md",
    files=[*files],
    vouches=NOBODY_VOUCHES[verdict.vouched],
    card=card(saved.receipt).rstrip(),
    images=images,
    feature_dim=saved.head.feature_dim,
    names=list(stated["class_names"]),
    notes=notes,
  ).encode()
  with StagedOutput(out) as output:
    with disk_errors(out):
      output.staging.mkdir()
      for name, content in files.items():
        (output.staging / name).write_bytes(content)
    output.publish()
  return sorted(files), notes


def deployment(receipt: dict[str, Any]) -> str:
  """A draft for the Deployments Registry of a private head; YAML.

  It has the fields of tier 3 of its schema (opendp/deployments-registry-data
  on GitHub, of 2026; Nanayakkara, Ghazi & Vadhan, arXiv 2509.13509). What no
  receipt knows begins with FILL IN.
  """
  stated, date = receipt["stated"], datetime.datetime.now(datetime.UTC).date()
  words = f"{stated['dataset']}-{stated['backbone']['name']}-head".lower()
  slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
  releases = (
    f"{each['count']} x {each['name']}" for each in stated["releases"]
  )
  return filled_in(
    "deployment.yaml",
    _quoted,
    **receipt,
    date=date.isoformat(),
    slug=f"{slug}-{date.year}",
    releases=", ".join(releases),
    options=json.dumps(stated["options"]),
  )


def _quoted(value: str | float) -> str:
  # 1e-05 is no number to YAML 1.1.
  return re.sub(r"^(\d+)e", r"\1.0e", json.dumps(value))


def images_program(backbone: Backbone, head: LinearHead) -> bytes:
  """uint8 images [b, s, s, 3] → logits [b, K], less the largest bias.

  For CPU, CUDA and TPU, and any b; weights and normalisation are in it.
  `jax.export.deserialize(bytearray(…)).call(images)` runs it.
  """
  params = jax.tree.map(jnp.asarray, backbone.params)
  ranking = head.ranking()

  # One image at a time, for a batch whose size is a symbol: networks may ask
  # for its length.
  @jax.vmap
  def logits(image: UInt8[Array, "s s 3"]) -> Float32[Array, " K"]:
    return ranking.logits(backbone.apply(params, image[None]))[0]

  side = backbone.preprocessing.image_size
  return _serialized(logits, (side, side, 3), jnp.uint8)


def _serialized(
  function: Callable[..., Any], shape: tuple[int, ...], dtype: Any
) -> bytes:
  """A program of batches [b, …] of any size."""
  (batch,) = export.symbolic_shape("b")
  arguments = jax.ShapeDtypeStruct((batch, *shape), dtype)
  flag = "jax_traceback_in_locations_limit"
  before = getattr(jax.config, flag)
  try:
    # Else every operation says in which file of this machine it was written.
    jax.config.update(flag, 0)
    exported = export.export(jax.jit(function), platforms=_PLATFORMS)(arguments)
  finally:
    jax.config.update(flag, before)
  return bytes(exported.serialize())
