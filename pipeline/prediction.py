"""Which classes images, or rows of a cache, are of, by a head: a CSV file."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp
import msgspec
import numpy as np

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import ComputeDtype, PreprocessConfig
from oneshot_dp.extract.backbones.backbone import Backbone, load_backbone
from oneshot_dp.extract.cache.format import backbone_fingerprint
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.files import write_once
from oneshot_dp.extract.job.shard import embed_images
from oneshot_dp.extract.sources.open_source import unlabelled
from oneshot_dp.pipeline.heads.head_folder import SavedHead

_FORMULA = ("=", "+", "-", "@", "'")
"""What a spreadsheet takes a cell for a formula by, and the sign against it."""
_MOST_NAMED = 1000
_Named = tuple[list[str], np.ndarray]
"""Names of rows, and their embeddings [rows, d]."""


def backbone_of(
  saved: SavedHead,
  *,
  backbone: str | None = None,
  weights: str | None = None,
  compute_dtype: ComputeDtype | None = None,
) -> Backbone:
  """The backbone of a head's receipt; weights are found as `extract` does.

  `backbone` is where a user's own function is now, `weights` where those are.
  InputError: the head is of imported features, the weights are nowhere, or what
  was found is not what the head was trained on.
  """
  stated = saved.receipt["stated"]
  identity = stated["backbone"]
  if not identity.get("preprocess"):
    raise InputError(
      f"{saved.path} was trained on imported features, and how images become"
      " such features is not known here: give a cache of them."
    )
  name = backbone or identity["name"]
  is_own = "code_sha256" in identity or ".py:" in name
  found = load_backbone(
    name,
    weights=weights,
    weights_sha256=identity.get("weights_sha256"),
    embedding=None if is_own else identity.get("layer"),
    compute_dtype=None if is_own else compute_dtype,
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


def predict_images(
  out: Path,
  saved: SavedHead,
  backbone: Backbone,
  images: Sequence[str],
  *,
  top_k: int = 1,
  skip_broken: bool = False,
) -> tuple[int, list[str]]:
  """Writes a line for each image: its name, and its best classes with logits.

  Returns how many images have a class, and those that cannot be decoded: with
  `skip_broken` they have a line without one. See `predict_cache`.

  InputError: images that cannot be decoded, all of them named, or no image.
  """
  source = unlabelled(images)
  if not len(source):
    raise InputError("there are no images: name files, or folders of them.")
  broken: list[str] = []

  def rows() -> Iterator[_Named]:
    for batch in embed_images(source, backbone):
      without = {index for index, _, _ in batch.broken}
      broken.extend(f"{where}: {fault}" for _, where, fault in batch.broken)
      good = batch.rows["example_id"].tolist()
      places = sorted([*good, *without])
      shape = len(places), backbone.feature_dim
      embedding = np.full(shape, np.nan, np.float32)
      embedding[np.isin(places, good)] = batch.rows["embedding"]
      yield [source.name_of(index) for index in places], embedding

  text = _table(saved, rows(), top_k)
  if broken and (not skip_broken or len(broken) == len(source)):
    more = len(broken) - _MOST_NAMED
    raise InputError(
      f"{len(broken)} of {len(source)} images cannot be decoded:"
      f" {'; '.join(broken[:_MOST_NAMED])}{f'; and {more} more' * (more > 0)}."
      " Mend or remove them, or use --on-decode-error skip."
    )
  _write(out, text)
  return len(source) - len(broken), broken


def predict_cache(
  out: Path, saved: SavedHead, cache: FeatureCache, *, top_k: int = 1
) -> tuple[int, list[str]]:
  """Writes a line for each row of a cache, which is named by its id.

  Logits compare the classes of one image, and are no probabilities. The file
  has mode 0600, as it is as private as the images, and is there whole or not at
  all. Control characters of names are escaped, and what a spreadsheet would
  take for a formula has a ' before it.

  InputError: the cache is of another backbone, or damaged.
  """
  if cache.info.backbone_fingerprint != saved.stated["backbone_fingerprint"]:
    raise InputError(
      f"{cache.name} was made with another backbone, layer or preprocessing"
      f" than {saved.path}: use {saved.stated['backbone']['name']}."
    )
  rows = (
    (list(map(str, block["example_id"])), block["embedding"])
    for block in cache.blocks()
  )
  text = _table(saved, rows, top_k)
  _write(out, text)
  return text.count("\n") - 1, []


def _table(saved: SavedHead, rows: Iterable[_Named], top_k: int) -> str:
  """A CSV table; a row of NaN has no class."""
  class_names = [cell(name) for name in saved.stated["class_names"]]
  if not 1 <= top_k <= len(class_names):
    raise InputError(
      f"--top-k {top_k} must be from 1 to {len(class_names)}, the classes."
    )
  text = io.StringIO(newline="")
  writer = csv.writer(text)
  ranks = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
  columns = (f"{of}{rank}" for rank in ranks for of in ("class", "logit"))
  writer.writerow(["image", *columns])
  ranking = saved.head.ranking()
  for names, embedding in rows:
    logits = np.asarray(ranking.logits(jnp.asarray(embedding, jnp.float32)))
    # Stable: of equal ones the first, as `evaluate` counts.
    best = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    for name, classes, scores in zip(names, best, logits, strict=True):
      line = [cell(name)]
      for label in classes:
        both = class_names[label], f"{scores[label]:.6g}"
        line += ("", "") if np.isnan(scores[label]) else both
      writer.writerow(line)
  return text.getvalue()


def _write(out: Path, text: str) -> None:
  if not write_once(out, text.encode()):
    raise InputError(f"--out {out} is there already; name a new file.")


def cell(name: str) -> str:
  """A name as a spreadsheet and a terminal may show it.

  >>> cell("cat.png"), cell("=HYPERLINK(1)")
  ('cat.png', "'=HYPERLINK(1)")
  """
  shown = escaped(name).replace("\n", "\\n").replace("\t", "\\t")
  return f"'{shown}" if shown.startswith(_FORMULA) else shown
