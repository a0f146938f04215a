"""A saved head and its backbone in formats that other libraries load."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, Float32, UInt8

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.images.preprocess import PILLOW_FILTER, Preprocessing
from oneshot_dp.linear_dp.evaluate import Accuracy
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.saved_head.directory import RECEIPT_FILE, SavedHead
from oneshot_dp.pipeline.saved_head.model_card import model_card
from oneshot_dp.pipeline.serving import hugging_face

STABLEHLO_FILE = "images_to_logits.jax_export"
_PLATFORMS = ("cpu", "cuda", "tpu")


def export_head(
  out: Path,
  head: Path,
  saved: SavedHead,
  backbone: Backbone,
  accuracy: Accuracy | None,
) -> tuple[list[str], str]:
  """Writes a directory that serves without this package.

  Returns the names of its files; and why nothing for transformers, or "".

  What travels is the backbone (public), in float32, the head, its receipt and
  its card, with the accuracy on public labels. RunError: the disk refuses.
  """
  names = tuple(saved.receipt["data"]["class_names"])
  with output_dir.whole_directory(out) as directory:
    no_transformers, has_code = "", False
    try:
      has_code = hugging_face.write_model(
        directory, backbone, saved.head, names
      )
    except InputError as error:
      no_transformers = str(error)
    function = to_stablehlo(backbone, saved.head)
    (directory / STABLEHLO_FILE).write_bytes(function)
    shutil.copyfile(head / RECEIPT_FILE, directory / RECEIPT_FILE)
    card = _card(saved, backbone, accuracy, no_transformers, has_code)
    (directory / "README.md").write_text(card, "utf-8")
    files = sorted(path.name for path in directory.iterdir())
  return files, no_transformers


def to_stablehlo(backbone: Backbone, head: LinearHead) -> bytes:
  """uint8 images [b, s, s, 3] → logits [b, K], less the largest bias.

  For CPU, CUDA and TPU, and any b; weights and normalisation are in it.
  `jax.export.deserialize(bytearray(…)).call(images)` runs it.
  """
  bias = np.asarray(head.bias)
  params = jax.tree.map(jnp.asarray, backbone.params)
  ranking = dataclasses.replace(head, bias=bias - bias.max())

  # One image at a time, for a batch whose size is a symbol: networks may ask
  # for its length.
  @jax.vmap
  def logits(image: UInt8[Array, "s s 3"]) -> Float32[Array, " K"]:
    return ranking.logits(backbone.apply(params, image[None]))[0]

  side = backbone.preprocessing.image_size
  (batch,) = export.symbolic_shape("b")
  images = jax.ShapeDtypeStruct((batch, side, side, 3), jnp.uint8)
  # Every operation would say in which file of this machine it was written.
  flag = "jax_traceback_in_locations_limit"
  before = getattr(jax.config, flag)
  jax.config.update(flag, 0)
  try:
    exported = export.export(jax.jit(logits), platforms=_PLATFORMS)(images)
  finally:
    jax.config.update(flag, before)
  return bytes(exported.serialize())


def _card(
  saved: SavedHead,
  backbone: Backbone,
  accuracy: Accuracy | None,
  no_transformers: str,
  has_code: bool,
) -> str:
  data: dict[str, Any] = saved.receipt["data"]
  scored = "It was not scored for this card."
  if accuracy is not None:
    scored = (
      f"Top-1 {accuracy.top1:.2%}, top-5 {accuracy.top5:.2%} on"
      f" {accuracy.num_examples:,} images whose labels are public."
    )
  trust = ", trust_remote_code=True" if has_code else ""
  usage = f"""```python
from PIL import Image, ImageOps
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained(".")
model = AutoModelForImageClassification.from_pretrained("."{trust})
image = ImageOps.exif_transpose(Image.open("image.jpg")).convert("RGB")
pixels = processor(image, return_tensors="pt")
print(model.config.id2label[model(**pixels).logits.argmax().item()])
```
"""
  if has_code:
    usage += f"\n`{hugging_face.CODE_FILE}` is the head, in a few lines.\n"
  if no_transformers:
    usage = f"{no_transformers}\n"
  library = "jax" if no_transformers else "transformers"
  side, names = backbone.preprocessing.image_size, data["class_names"]
  body = model_card(saved.receipt, saved.receipt_sha256)
  # Its last lines are about a directory with head.safetensors.
  body = body.partition("`oneshot-dp verify` on this")[0].rstrip() + "\n"
  title, _, rest = body.partition("\n")
  return f"""---
library_name: {library}
pipeline_tag: image-classification
tags:
- image-classification
- differential-privacy
---

{title}
{rest}
## How accurate

{scored}

## How to use it

{usage}
Or with JAX alone, of images [b, {side}, {side}, 3] uint8:

```python
import pathlib
import numpy as np
from jax import export
from PIL import Image, ImageOps

image = ImageOps.exif_transpose(Image.open("image.jpg")).convert("RGB")
{_resizing(backbone.preprocessing)}
content = pathlib.Path("{STABLEHLO_FILE}").read_bytes()
logits = export.deserialize(bytearray(content)).call(np.asarray(image)[None])
print({list(names)}[logits.argmax()])
```

Logits compare the classes of one image; they are no probabilities.
`receipt.json` is the guarantee, and all that it follows from. Made by
oneshot-dp.
"""


def _resizing(images: Preprocessing) -> str:
  """Lines of Pillow that make of `image` what the network is shown."""
  side, how = images.image_size, PILLOW_FILTER[images.resample]
  if not images.antialias:
    return f"image = ...  # {images}: see the receipt"
  if images.resize == "square":
    return f"image = image.resize(({side}, {side}), Image.{how.name})"
  full = f"({images.resize}, {images.resize})"
  if images.keep_aspect:
    full = f"[round(s * {images.resize} / min(image.size)) for s in image.size]"
  return f"""image = image.resize({full}, Image.{how.name})
left, top = ((s - {side}) // 2 for s in image.size)
image = image.crop((left, top, left + {side}, top + {side}))"""
