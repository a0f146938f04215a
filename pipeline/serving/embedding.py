"""Images to the embeddings that a head takes, as its receipt says."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import (
  BackboneConfig,
  ExtractConfig,
  PreprocessConfig,
)
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.backbones.registry import (
  RANDOM_PATCHES,
  find_architecture,
  resolved,
)
from oneshot_dp.extract.backbones.user_function import is_user_function
from oneshot_dp.extract.cache.block import EMBEDDING_DTYPES
from oneshot_dp.extract.cache.identity import embedding_fingerprint
from oneshot_dp.extract.job.embed_range import decode_pool, embed_range
from oneshot_dp.extract.job.embedder import identity_of, load_embedder
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.sources.example import Source
from oneshot_dp.extract.sources.open_source import open_source
from oneshot_dp.extract.weights.weights_cache import remembered

Embedded = Iterator[tuple[np.ndarray, np.ndarray]]
"""Embeddings [rows, d] in the precision of caches, and places in the source."""


def backbone_config(
  data: dict[str, Any], backbone: str | None, weights: str | None
) -> tuple[BackboneConfig, PreprocessConfig]:
  """The backbone of a receipt's section about data.

  `backbone` is where a user's own function is, FILE.py:FUNCTION; `weights` None
  is where this machine saw them last. InputError: there is no such backbone, or
  the weights are nowhere.
  """
  stated = data["backbone"]
  name, sha256 = backbone or stated["name"], stated["weights_sha256"]
  if not data["preprocess"]:
    raise InputError(
      f"the head is of imported features ({name}), and what made them of images"
      " is not known here, so it cannot be exported or be given images: predict"
      " on caches of such features, or use load_head of oneshot_dp."
    )
  shown: dict[str, Any] = {  # JSON has no tuples
    key: tuple(value) if isinstance(value, list) else value
    for key, value in data["preprocess"].items()
  }
  preprocess = PreprocessConfig(**shown)
  if name == RANDOM_PATCHES:
    return BackboneConfig(name=name), preprocess
  is_own = is_user_function(name)
  brings_them = not is_own and find_architecture(name).embedded_weights
  if weights is None and sha256 is not None:
    weights = remembered(sha256)
    if weights is None and not brings_them:
      raise InputError(
        f"the weights of {name} (SHA-256 {sha256}) are not known on this"
        " machine: say where they are with --backbone.weights."
      )
  config = BackboneConfig(
    name=name,
    weights=weights,
    weights_sha256=sha256 if weights else None,
    embedding=None if is_own else stated["layer"],
  )
  return config, preprocess


def check_backbone(data: dict[str, Any], found: Backbone) -> None:
  """Refuses a backbone that is not the receipt's, whatever it is called."""
  preprocess = dataclasses.asdict(found.preprocessing)
  args = identity_of(found), preprocess, found.feature_dim
  if embedding_fingerprint(*args) != data["backbone_fingerprint"]:
    raise InputError(
      f"{found.name} here is not the backbone that the head was trained on:"
      " its weights, code, embedding or preprocessing differ from the receipt's"
      f" ({data['backbone_fingerprint'][:12]})."
    )


@contextlib.contextmanager
def embedded_images(
  job: ExtractConfig,
  data: dict[str, Any],
  work: Path,
  beam_options: Sequence[str] = (),
) -> Iterator[tuple[Source, Embedded]]:
  """Embeds images as `oneshot-dp extract` does, those of one shard at once.

  More than that, or what has options for Beam, is the extraction job itself,
  with a cache in `work` until the block has ended; after a kill the same call
  goes on with it. InputError: the images, or the backbone, are not what they
  should be.
  """
  job = dataclasses.replace(job, backbone=resolved(job.backbone))
  source = open_source(job.source, job.split)
  if len(source) <= job.shard_rows and not beam_options:
    yield source, _at_once(job, data, source)
    return
  # Beam takes a second or two to import.
  from oneshot_dp.extract.job.job import run_extraction
  from oneshot_dp.extract.job.shard import shared_embedder

  check_backbone(data, shared_embedder(job).backbone)
  cache = run_extraction(job, work, beam_options).cache
  rows = ((b.embedding, b.example_id) for b in cache.blocks())
  yield source, rows
  shutil.rmtree(work)


def _at_once(
  job: ExtractConfig, data: dict[str, Any], source: Source
) -> Embedded:
  embedder = load_embedder(job)
  check_backbone(data, embedder.backbone)
  dtype = EMBEDDING_DTYPES[job.embedding_dtype]
  with decode_pool(job) as pool, step_bar("embed", "img", len(source)) as bar:
    indices = range(len(source))
    for batch in embed_range(source, indices, embedder, job, pool):
      bar.update(len(batch.rows) + len(batch.skipped))
      yield batch.rows.embedding.astype(dtype), batch.rows.example_id
