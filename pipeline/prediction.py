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
from oneshot_dp.extract.cache.format import sha256_of
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.files import write_once
from oneshot_dp.extract.job.shard import embed_images
from oneshot_dp.extract.sources.open_source import unlabelled
from oneshot_dp.pipeline.heads.head_folder import SavedHead

_FORMULA = ("=", "+", "-", "@", "'")
"""What a spreadsheet takes a cell for a formula by, and the sign against it."""
_MOST_NAMED, _AT_ONCE = 1000, 256
Named = tuple[list[str], np.ndarray]
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
      "the head was trained on imported features, and how images become such"
      " features is not known here: give a cache of them."
    )
  name = backbone or identity["name"]
  is_own = bool(identity.get("code_sha256")) or ".py:" in name
  found = load_backbone(
    name,
    weights=weights,
    weights_sha256=identity.get("weights_sha256"),
    embedding=None if is_own else identity.get("layer"),
    compute_dtype=None if is_own else compute_dtype,
    preprocess=msgspec.convert(identity["preprocess"], PreprocessConfig),
  )
  # As `CacheInfo.backbone_fingerprint`.
  known = sha256_of([found.identity, found.feature_dim])
  if known != stated["backbone_fingerprint"]:
    raise InputError(
      f"{found.name} here is not the backbone that the head was trained on:"
      " its weights, code, embedding or preprocessing differ"
      f" ({known[:12]} instead of {stated['backbone_fingerprint'][:12]}):"
      " name those of the training with --weights or --backbone."
    )
  return found


def of_images(
  backbone: Backbone, images: Sequence[str], broken: list[str]
) -> Iterator[Named]:
  """Embeddings of images, by their names; of what is no image, NaN.

  Those go to `broken`, each with its fault. InputError: there is no image.
  """
  source = unlabelled(images)
  if not len(source):
    raise InputError("there are no images: name files, or folders of them.")
  for batch in embed_images(source, backbone):
    without = {index for index, _, _ in batch.broken}
    broken.extend(f"{where}: {fault}" for _, where, fault in batch.broken)
    good = batch.rows["example_id"].tolist()
    places = sorted([*good, *without])
    embedding = np.full((len(places), backbone.feature_dim), np.nan, np.float32)
    embedding[np.isin(places, good)] = batch.rows["embedding"]
    yield [source.name_of(index) for index in places], embedding


def of_cache(saved: SavedHead, cache: FeatureCache) -> Iterator[Named]:
  """Embeddings of a cache, by their ids.

  InputError: it is of another backbone than the head, or damaged.
  """
  if cache.info.backbone_fingerprint != saved.stated["backbone_fingerprint"]:
    raise InputError(
      f"{cache.name} was made with another backbone, layer or preprocessing"
      f" than {saved.path}: use {saved.stated['backbone']['name']}."
    )
  for block in cache.blocks():
    ids, embedding = block["example_id"], block["embedding"]
    for start in range(0, len(ids), _AT_ONCE):
      some = slice(start, start + _AT_ONCE)
      yield [*map(str, ids[some])], embedding[some]


def predict(
  out: Path,
  saved: SavedHead,
  rows: Iterable[Named],
  broken: Sequence[str] = (),
  *,
  top_k: int = 1,
  skip_broken: bool = False,
) -> int:
  """Writes a CSV line for each row: its name, its best classes and logits.

  Logits compare the classes of one image, and are no probabilities. The file
  has mode 0600, as it is as private as the images, and is there whole or not at
  all. Control characters of names are escaped, and what a spreadsheet would
  take for a formula has a ' before it. Returns how many have a class.

  InputError: `broken`, which is what `of_images` left there, is not empty, and
  not to be skipped or all there is; or something is at `out`.
  """
  class_names = [cell(name) for name in saved.stated["class_names"]]
  if not 1 <= top_k <= len(class_names):
    raise InputError(
      f"--top-k {top_k} must be from 1 to {len(class_names)}, the classes."
    )
  text, count, ranking = io.StringIO(newline=""), 0, saved.head.ranking()
  writer = csv.writer(text)
  ranks = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
  columns = (f"{of}{rank}" for rank in ranks for of in ("class", "logit"))
  writer.writerow(["image", *columns])
  for names, embedding in rows:
    logits = np.asarray(ranking.logits(jnp.asarray(embedding, jnp.float32)))
    # Stable: of equal ones the first, as `evaluate` counts.
    best = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    count += len(names)
    for name, classes, scores in zip(names, best, logits, strict=True):
      line = [cell(name)]
      for label in classes:
        both = class_names[label], f"{scores[label]:.6g}"
        line += ("", "") if np.isnan(scores[label]) else both
      writer.writerow(line)
  if broken and (not skip_broken or len(broken) == count):
    more = len(broken) - _MOST_NAMED
    raise InputError(
      f"{len(broken)} of {count} images cannot be decoded:"
      f" {'; '.join(broken[:_MOST_NAMED])}{f'; and {more} more' * (more > 0)}."
      " Mend or remove them, or use --on-decode-error skip."
    )
  if not write_once(out, text.getvalue().encode()):
    raise InputError(f"--out {out} is there already; name a new file.")
  return count - len(broken)


def cell(name: str) -> str:
  """A name as a spreadsheet and a terminal may show it.

  >>> cell("cat.png"), cell("=HYPERLINK(1)")
  ('cat.png', "'=HYPERLINK(1)")
  """
  shown = escaped(name).replace("\n", "\\n").replace("\t", "\\t")
  return f"'{shown}" if shown.startswith(_FORMULA) else shown
