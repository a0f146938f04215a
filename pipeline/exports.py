"""A head, with its backbone where that is at hand, for other libraries.

DIR/embeddings_to_logits.jax_export   StableHLO of the head
DIR/images_to_logits.jax_export       StableHLO of backbone and head
DIR/model.safetensors, config.json    both in timm's form, of what timm has
DIR/receipt.json, README.md           what was promised, and how to load it
DIR/deployment.yaml                   the record of the Deployments Registry
"""

import dataclasses
import datetime
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.files import disk_errors
from oneshot_dp.extract.images.resize import Preprocessing
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.pipeline import deployments_registry
from oneshot_dp.pipeline.card import card
from oneshot_dp.pipeline.deliver import alone
from oneshot_dp.pipeline.head_folder import SavedHead
from oneshot_dp.pipeline.timm_form import CODE_FILE, timm_files
from oneshot_dp.pipeline.verify import Verdict

HEAD_FILE = "embeddings_to_logits.jax_export"
IMAGES_FILE = "images_to_logits.jax_export"
REGISTRY_FILE = "deployment.yaml"
NOBODY_VOUCHES = (
  "NOT VOUCHED FOR: the ledger at hand has no charge that these weights left"
  " for."
)
NO_LEDGER = (
  "Nobody vouches for this copy: no ledger was at hand when it was written."
)
_PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
  """Names of the files, and why there is no backbone, or no timm's form."""

  files: tuple[str, ...]
  notes: tuple[str, ...]


def export_head(
  out: Path,
  saved: SavedHead,
  verdict: Verdict,
  backbone: Backbone | str,
  *,
  with_registry: bool = False,
) -> Exported:
  """Writes DIR, whole or not at all.

  What travels is public: the head, its receipt and card, and the backbone, in
  float32, or a string that says why it is not at hand.

  Raises:
    InputError: `out` is there already.
    RunError: the disk refuses.
  """
  stated, notes = saved.receipt["stated"], []
  files = {HEAD_FILE: head_program(saved.head)}
  if isinstance(backbone, str):
    notes.append(backbone)
  else:
    files[IMAGES_FILE] = images_program(backbone, saved.head)
    try:
      files |= timm_files(backbone, saved.head, stated["class_names"])
    except InputError as error:
      notes.append(str(error))
  files["receipt.json"] = _json(saved.receipt)
  if with_registry:
    today = datetime.datetime.now(datetime.UTC).date()
    record = deployments_registry.registry_record(saved.receipt, today)
    files[REGISTRY_FILE] = deployments_registry.as_yaml(record).encode()
  of = None if isinstance(backbone, str) else backbone.preprocessing
  files["README.md"] = _card(saved, verdict, of, list(files), notes).encode()
  with alone(out) as (place, work):
    directory = work / "whole"
    try:
      with disk_errors(out):
        directory.mkdir()
        for name, content in files.items():
          (directory / name).write_bytes(content)
        directory.rename(place)
    except BaseException:
      shutil.rmtree(directory, ignore_errors=True)
      raise
  return Exported(files=tuple(sorted(files)), notes=tuple(notes))


def head_program(head: LinearHead) -> bytes:
  """Embeddings [b, d] float32 → logits [b, K], less the largest bias."""
  (batch,) = export.symbolic_shape("b")
  shape = jax.ShapeDtypeStruct((batch, head.feature_dim), jnp.float32)
  return _serialized(head.ranking().logits, shape)


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
  (batch,) = export.symbolic_shape("b")
  return _serialized(
    logits, jax.ShapeDtypeStruct((batch, side, side, 3), jnp.uint8)
  )


def _serialized(
  function: Callable[..., Any], shape: jax.ShapeDtypeStruct
) -> bytes:
  # Every operation would say in which file of this machine it was written.
  flag = "jax_traceback_in_locations_limit"
  before = getattr(jax.config, flag)
  jax.config.update(flag, 0)
  try:
    exported = export.export(jax.jit(function), platforms=_PLATFORMS)(shape)
  finally:
    jax.config.update(flag, before)
  return bytes(exported.serialize())


def _json(value: dict[str, Any]) -> bytes:
  return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _card(
  saved: SavedHead,
  verdict: Verdict,
  images: Preprocessing | None,
  files: Sequence[str],
  notes: Sequence[str],
) -> str:
  """The head's own card, how to load this copy, and who vouches for it."""
  vouched = {True: "", False: f"**{NOBODY_VOUCHES}**\n\n", None: NO_LEDGER}
  said = vouched[verdict.vouched] + ("\n\n" if verdict.vouched is None else "")
  library = "timm" if "config.json" in files else "jax"
  lines = [
    "---",
    f"library_name: {library}",
    "pipeline_tag: image-classification",
    "tags:\n- image-classification\n- differential-privacy",
    "---\n",
    said + card(saved.receipt).rstrip(),
    "\n## How to use this copy\n",
  ]
  if "config.json" in files:
    lines.append(_OF_NORM_1 if CODE_FILE in files else _TIMM)
  if images is not None:
    lines.append(
      _STABLEHLO.format(
        side=images.image_size,
        resizing=_resizing(images),
        file=IMAGES_FILE,
        names=json.dumps(list(saved.receipt["stated"]["class_names"])),
      )
    )
  lines.append(
    f"`{HEAD_FILE}` takes embeddings [b, {saved.head.feature_dim}] float32."
    " Logits compare the classes of one image; they are no probabilities.\n"
  )
  return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


_TIMM = """In timm's form, which transformers opens, too:

```python
import json
import timm

config = json.load(open("config.json"))
model = timm.create_model(
  config["architecture"],
  num_classes=config["num_classes"],
  checkpoint_path="model.safetensors",
  **config["model_args"],
)
```

```python
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained(".")
model = AutoModelForImageClassification.from_pretrained(".")
```
"""
_OF_NORM_1 = """In timm's form, with a few lines of code beside it, because the
head takes embeddings at norm 1:

```python
from open_model import open_model

model = open_model()
```

```python
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained(".")
model = AutoModelForImageClassification.from_pretrained(
  ".", trust_remote_code=True
)
```
"""
_STABLEHLO = """With JAX alone, of images [b, {side}, {side}, 3] uint8:

```python
import pathlib
import numpy as np
from jax import export
from PIL import Image, ImageOps

image = ImageOps.exif_transpose(Image.open("image.jpg")).convert("RGB")
{resizing}
content = pathlib.Path("{file}").read_bytes()
logits = export.deserialize(bytearray(content)).call(np.asarray(image)[None])
print({names}[int(logits.argmax())])
```
"""


def _resizing(images: Preprocessing) -> str:
  """Lines of Pillow that make of `image` what the network is shown."""
  side, how = images.image_size, images.resample.upper()
  if not images.antialias:
    return f"image = ...  # {images}: see the receipt"
  if images.resize == "square":
    return f"image = image.resize(({side}, {side}), Image.{how})"
  full = f"({images.resize}, {images.resize})"
  if images.keep_aspect:
    full = f"[round(s * {images.resize} / min(image.size)) for s in image.size]"
  return f"""image = image.resize({full}, Image.{how})
left, top = ((s - {side}) // 2 for s in image.size)
image = image.crop((left, top, left + {side}, top + {side}))"""
