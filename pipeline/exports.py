"""Exports a head, and its backbone where that is at hand, to other libraries.

DIR/embeddings_to_logits.jax_export   StableHLO of the head: float32 [b, d]
DIR/images_to_logits.jax_export       StableHLO of backbone and head
DIR/model.safetensors, config.json    both in timm's form, if timm has them
DIR/receipt.json, README.md           what was promised, and how to load it
DIR/deployment.yaml                   a draft for the Deployments Registry
"""

import contextlib
import datetime
import json
import re
from collections.abc import Callable, Iterator
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
from oneshot_dp.pipeline.heads.model_card import (
  render_card,
  template_environment,
)
from oneshot_dp.pipeline.heads.verify import LedgerStatus, Verdict
from oneshot_dp.pipeline.ledger.delivery import output_at
from oneshot_dp.pipeline.report.results import as_json
from oneshot_dp.pipeline.timm_form import timm_files

HEAD_FILE = "embeddings_to_logits.jax_export"
IMAGES_FILE = "images_to_logits.jax_export"
LEDGER_NOTICES = {
  LedgerStatus.RECORDED: "",
  LedgerStatus.NOT_RECORDED: (
    "NOT VERIFIED: by the ledger, these files were not paid for."
  ),
  LedgerStatus.NO_LEDGER: "Not verified: no ledger was at hand.",
}
"""What an export says of the ledger's answer; "" where all is well."""
_NO_BACKBONE = (
  "The backbone was not at hand when this was exported: this is the head alone."
)
_NO_TIMM_FORM = "timm has no network of this backbone with such a classifier."
_PLATFORMS = ("cpu", "cuda", "tpu")


def export_head(
  out: Path,
  saved: SavedHead,
  verdict: Verdict,
  backbone: Backbone | str,
  *,
  with_registry: bool = False,
) -> tuple[list[str], list[str]]:
  """Writes DIR, whole or not at all; everything in it is public.

  Args:
    out: the folder to write, which must not exist; on a disk, or a URL.
    saved: the head.
    verdict: what `verify_head` found; the card states it.
    backbone: the network that makes its embeddings, in float32; or the reason
      why it is not at hand.
    with_registry: whether to write deployment.yaml.

  Returns:
    The names of the files, and the reasons why there is no backbone or no
    checkpoint in timm's form.

  Raises:
    InputError: `out` exists already.
    RunError: the disk or the store refuses.
  """
  # A reason for the person who exports may name files of this machine; the
  # card, which is published, has its own words for it.
  notes = []
  card_notes = []
  images = None
  # Everything is made in memory before the folder: what cannot be exported
  # leaves nothing behind.
  files = {HEAD_FILE: embeddings_program(saved.head)}
  if isinstance(backbone, str):
    notes.append(backbone)
    card_notes.append(_NO_BACKBONE)
  else:
    images = backbone.preprocessing
    files[IMAGES_FILE] = images_program(backbone, saved.head)
    try:
      files |= timm_files(backbone, saved.head, saved.stated["class_names"])
    except InputError as error:
      notes.append(str(error))
      card_notes.append(_NO_TIMM_FORM)
  # The card is last, since it lists the other files and what could not be made.
  files["receipt.json"] = as_json(saved.receipt)
  if with_registry:
    files["deployment.yaml"] = deployment(saved.receipt).encode()
  files["README.md"] = (
    _TEMPLATES.get_template("model.md.j2")
    .render(
      files=list(files),
      ledger_notice=LEDGER_NOTICES[verdict.status],
      card=render_card(saved.receipt, is_head_folder=False).rstrip(),
      images=images,
      feature_dim=saved.head.feature_dim,
      names=list(saved.stated["class_names"]),
      notes=card_notes,
    )
    .encode()
  )
  with output_at(out) as output:
    with disk_errors(output.staging):
      output.staging.mkdir()
      for name, content in files.items():
        (output.staging / name).write_bytes(content)
    output.publish()
  return sorted(files), notes


def deployment(receipt: dict[str, Any]) -> str:
  """Drafts an entry of a private head for the Deployments Registry; YAML.

  It has the fields of tier 3 of the registry's schema. What no receipt knows
  begins with FILL IN.

  Source: opendp/deployments-registry-data on GitHub, of 2026; Nanayakkara,
  Ghazi & Vadhan, arXiv 2509.13509.
  """
  stated = receipt["stated"]
  date = datetime.datetime.now(datetime.UTC).date()
  title = f"{stated['dataset']}-{stated['backbone']['name']}-head".lower()
  slug = re.sub(r"[^a-z0-9]+", "-", title).strip("-")
  releases = [
    f"{release['count']} x {release['name']}" for release in stated["releases"]
  ]
  return _TEMPLATES.get_template("deployment.yaml.j2").render(
    stated=stated,
    follows=receipt["follows"],
    date=date.isoformat(),
    slug=f"{slug}-{date.year}",
    releases=", ".join(releases),
    options=json.dumps(stated["options"]),
  )


def embeddings_program(head: LinearHead) -> bytes:
  """Writes float32 embeddings [b, d] → logits [b, K] as StableHLO."""
  ranking = head.ranking()
  return _serialize(ranking.logits, (head.feature_dim,), jnp.float32)


def images_program(backbone: Backbone, head: LinearHead) -> bytes:
  """Writes uint8 images [b, s, s, 3] → logits [b, K] as StableHLO.

  For CPU, CUDA and TPU, and any b; weights and normalization are in it. Logits
  are less the largest bias. `jax.export.deserialize(bytearray(…)).call(images)`
  runs it.

  Args:
    backbone: a loaded backbone, whose images have s pixels on a side.
    head: a head that was trained on its embeddings.

  Returns:
    The serialized program, which names no file of this machine.
  """
  params = jax.tree.map(jnp.asarray, backbone.params)
  ranking = head.ranking()

  # One image at a time, for a batch whose size is a symbol: networks may ask
  # for its length.
  @jax.vmap
  def logits(image: UInt8[Array, "s s 3"]) -> Float32[Array, " K"]:
    return ranking.logits(backbone.apply(params, image[None]))[0]

  side = backbone.preprocessing.image_size
  return _serialize(logits, (side, side, 3), jnp.uint8)


def _serialize(
  function: Callable[..., Any], shape: tuple[int, ...], dtype: Any
) -> bytes:
  """A program of batches [b, …] of any size."""
  (batch,) = export.symbolic_shape("b")
  arguments = jax.ShapeDtypeStruct((batch, *shape), dtype)
  with _without_source_locations():
    exported = export.export(jax.jit(function), platforms=_PLATFORMS)(arguments)
  return bytes(exported.serialize())


@contextlib.contextmanager
def _without_source_locations() -> Iterator[None]:
  """Keeps the paths of this machine's source files out of a program."""
  flag = "jax_traceback_in_locations_limit"
  before = getattr(jax.config, flag)
  jax.config.update(flag, 0)
  try:
    yield
  finally:
    jax.config.update(flag, before)


def _quote_yaml(value: str | float) -> str:
  """A value as JSON has it, which YAML reads, too."""
  # But 1e-05 is not a number to YAML 1.1.
  return re.sub(r"^(\d+)e", r"\1.0e", json.dumps(value))


_TEMPLATES = template_environment({"quoted": _quote_yaml})
