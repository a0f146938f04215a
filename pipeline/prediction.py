"""Predicts the classes of images, or of rows of a cache, into a CSV file."""

import contextlib
import csv
import dataclasses
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp
import msgspec
import numpy as np

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.configs.extract_config import MAX_PIXELS, ComputeDtype
from oneshot_dp.extract import files, places
from oneshot_dp.extract.backbones.backbone import Backbone, load_backbone
from oneshot_dp.extract.cache.format import check_views, sha256_of
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.job.shard import embed_images
from oneshot_dp.extract.known_weights import remembered_location
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.formats import is_image, is_table
from oneshot_dp.extract.sources.location import expand_location
from oneshot_dp.extract.sources.open_source import open_unlabeled
from oneshot_dp.pipeline.heads.head_folder import SavedHead

_FORMULA_SIGNS = ("=", "+", "-", "@", "'")
"""A spreadsheet takes a cell that begins with one of the first four for a
formula. A leading ' prevents that, so it has to be escaped, too."""
_MOST_NAMED = 1000
UNKNOWN_EMBEDDINGS = (
  "the head was trained on imported features, and how images become such"
  " features is not known here"
)
"""Why a head of imported embeddings takes no images, for messages."""
_BROKEN_NOTE = "cannot be decoded"
_OTHER_NOTE = "passed over: not a supported image format"
_ROWS_AT_ONCE = 256
Named = tuple[list[str], np.ndarray]
"""Names of rows, and their embeddings [rows, d]."""


class _StatedBackbone(msgspec.Struct):
  """What a receipt states of a backbone; see `Backbone.identity`."""

  name: str
  layer: str | None = None
  code_sha256: str | None = None
  weights_sha256: str | None = None
  preprocess: Preprocessing | None = None


def backbone_of(
  saved: SavedHead,
  *,
  backbone: str | None = None,
  weights: str | None = None,
  compute_dtype: ComputeDtype | None = None,
  bit_depth: int | None = None,
) -> Backbone:
  """Loads the backbone that a head's receipt states.

  Args:
    saved: the head.
    backbone: where a user's own FILE.py:FUNCTION is now; None is where the
      receipt says, if the file there is the one of the training.
    weights: where the weights are now; None finds them as `extract` does.
    compute_dtype: of the matrix products; None is the device's default.
    bit_depth: how many bits of 16-bit files are used, where the images are of
      another depth than those of the training.

  Returns:
    The backbone, whose weights, code and preprocessing are those of the
    training.

  Raises:
    InputError: the head was trained on imported features; the weights cannot be
      found; or what was found is not what the head was trained on.
  """
  # The receipt says what decides an embedding. A head on other embeddings gives
  # answers that look like any, so what is loaded must be the same to the bit.
  identity = _stated_backbone(saved)
  if identity.preprocess is None:
    raise InputError(
      f"{UNKNOWN_EMBEDDINGS}: give a cache of them, which `oneshot-dp import`"
      " makes if there are labels; in Python,"
      " oneshot_dp.load_head(…).predict(embeddings) needs none."
    )
  name = backbone or identity.name
  embedding = identity.layer
  if identity.code_sha256 or ".py:" in name:
    if backbone is None:
      _check_code(saved, identity)
    else:
      _check_function_name(backbone, identity.name)
    # A user's function decides both by itself.
    embedding = None
    compute_dtype = None
  weights_sha256 = identity.weights_sha256
  if weights is None and weights_sha256 is not None:
    weights = remembered_location(weights_sha256)
  try:
    loaded = load_backbone(
      name,
      weights=weights,
      weights_sha256=weights_sha256,
      embedding=embedding,
      compute_dtype=compute_dtype,
      preprocess=identity.preprocess,
    )
  except (InputError, RunError) as error:
    if weights is not None or weights_sha256 is None:
      raise
    raise type(error)(
      f"{error} If the weights of the training were moved, name their file with"
      " --weights."
    ) from error
  # As `CacheInfo.backbone_fingerprint`.
  fingerprint = sha256_of([loaded.identity, loaded.feature_dim])
  expected = saved.stated["backbone_fingerprint"]
  if fingerprint != expected:
    raise InputError(
      f"{loaded.name} here is not the backbone that the head was trained on:"
      " its weights, code, embedding or preprocessing differ"
      f" ({fingerprint[:12]} instead of {expected[:12]}): name those of the"
      " training with --weights or --backbone."
    )
  if bit_depth is None:
    return loaded
  # It is how the new files store their pixels, and not what the backbone sees.
  preprocessing = dataclasses.replace(loaded.preprocessing, bit_depth=bit_depth)
  return dataclasses.replace(loaded, preprocessing=preprocessing)


def _stated_backbone(saved: SavedHead) -> _StatedBackbone:
  """The backbone of a receipt; InputError: something of it is of no type."""
  try:
    return msgspec.convert(saved.stated["backbone"], _StatedBackbone)
  except msgspec.ValidationError as error:
    raise InputError(
      f"{saved.path} is damaged: the backbone that its receipt states cannot be"
      f" one ({str(error)!a:.200})."
    ) from error


def _check_code(saved: SavedHead, identity: _StatedBackbone) -> None:
  """Refuses to run a file that is not the code that a head was trained on.

  A receipt may be anybody's, and name any file of this machine, such as one
  that came with it. Of a training it has the name of the file, and no folder.
  """
  path = identity.name.rpartition(":")[0]
  code_sha256 = None
  if "/" not in path:
    with contextlib.suppress(InputError):  # there is no such file
      code_sha256 = files.sha256(path)
  if code_sha256 is None or code_sha256 != identity.code_sha256:
    raise InputError(
      f"{saved.path} was trained on embeddings of {identity.name}, and no such"
      " code is here: give --backbone FILE.py:FUNCTION."
    )


def _check_function_name(given: str, trained: str) -> None:
  """Raises InputError if a user's function is not called as at the training."""
  # The name is a part of what a head was trained on; its folder is not.
  if os.path.basename(given) != trained:
    raise InputError(
      f"{given} has another name than the head's backbone, {trained}: the file"
      " and the function have to keep their names; the folder may differ."
    )


def of_images(
  backbone: Backbone,
  images: Sequence[str],
  broken: list[str],
  max_pixels: int = MAX_PIXELS,
) -> Iterator[Named]:
  """Embeds images, and names each by its file or row.

  Args:
    backbone: what embeds them.
    images: files and folders; see `open_unlabeled`.
    broken: gets a line for each image that cannot be decoded, whose embedding
      is NaN.
    max_pixels: images that have more are broken.

  Yields:
    Names and embeddings, in the order of the images.

  Raises:
    InputError: there is no image.
  """
  source = open_unlabeled(images)
  if not len(source):
    raise InputError("there are no images: name files, or folders of them.")
  for batch in embed_images(source, backbone, max_pixels):
    # Every image has a row in its place, so that names and embeddings stay
    # together; NaN of a broken one comes out as a line without a class.
    broken_indices = []
    for index, place, fault in batch.broken:
      broken_indices.append(index)
      broken.append(f"{place}: {fault}")
    sound_indices = batch.rows["example_id"].tolist()
    indices = sorted([*sound_indices, *broken_indices])
    embedding = np.full(
      (len(indices), backbone.feature_dim), np.nan, np.float32
    )
    embedding[np.isin(indices, sound_indices)] = batch.rows["embedding"]
    yield [source.name_of(index) for index in indices], embedding


def passed_over(images: Sequence[str]) -> list[str]:
  """Lists the files in folders that `of_images` does not read.

  Some may be photographs, in a format that cannot be read (HEIC, say).

  Args:
    images: files and folders, as `of_images` takes them.

  Returns:
    Whole paths, in order.
  """
  others = []
  for path in expand_location(images):
    # The rule of `of_images`: images of a folder, or else its tables. What is
    # neither is listed.
    listed = listed_files.files_in(path)
    has_images = any(is_image(file.path) for file in listed)
    for file in listed:
      is_read = is_image(file.path)
      if not has_images:
        is_read = is_table(file.path)
      if not is_read:
        others.append(listed_files.join_folder(path, file).path)
  return others


def of_cache(saved: SavedHead, cache: FeatureCache) -> Iterator[Named]:
  """Reads the embeddings of a cache, and names each by its id.

  Args:
    saved: the head that they are for.
    cache: the cache.

  Yields:
    Names and embeddings, in the order of the cache.

  Raises:
    InputError: the cache is damaged, or was made with another backbone than the
      head's.
  """
  if cache.info.backbone_fingerprint != saved.stated["backbone_fingerprint"]:
    raise InputError(
      f"{cache.name} was made with another backbone, layer or preprocessing"
      f" than {saved.path}: use {saved.stated['backbone']['name']}."
    )
  check_views(
    str(saved.path), saved.stated["views"], cache.name, cache.info.views
  )
  for block in cache.blocks():
    names = [str(example_id) for example_id in block["example_id"]]
    for start in range(0, len(names), _ROWS_AT_ONCE):
      rows = slice(start, start + _ROWS_AT_ONCE)
      yield names[rows], block["embedding"][rows]


def predict(
  saved: SavedHead,
  rows: Iterable[Named],
  broken: Sequence[str] = (),
  *,
  others: Sequence[str] = (),
  top_k: int = 1,
  skip_broken: bool = False,
) -> tuple[str, int]:
  """Writes a CSV line for each row: its name, its best classes and logits.

  Logits compare the classes of one image; they are not probabilities. Control
  characters of names are escaped, and what a spreadsheet would take for a
  formula has a ' before it.

  Args:
    saved: the head.
    rows: names and embeddings; see `of_images` and `of_cache`.
    broken: what `of_images` adds to while `rows` are read.
    others: files that are no images; each has a line with the reason.
    top_k: how many classes, the best first.
    skip_broken: whether broken images have a line without a class, or are an
      error.

  Returns:
    The table, and how many rows have a class.

  Raises:
    InputError: an image is broken and not to be skipped, or all are.
  """
  class_names = [cell(name) for name in saved.stated["class_names"]]
  if not 1 <= top_k <= len(class_names):
    raise InputError(
      f"--top-k {top_k} must be from 1 to {len(class_names)}, the classes."
    )
  # In memory as a whole: the table is a few bytes for each image, and with a
  # broken image that may not be skipped nothing is to be written.
  text = io.StringIO(newline="")
  writer = csv.writer(text)
  writer.writerow([*_column_names(top_k), "note"])
  count = 0
  # As `evaluate` scores: by the head less its largest bias, in float32.
  ranking = saved.head.ranking()
  for names, embedding in rows:
    logits = np.asarray(ranking.logits(jnp.asarray(embedding, jnp.float32)))
    for name, scores in zip(names, logits, strict=True):
      note = _BROKEN_NOTE if np.isnan(scores).any() else ""
      classes = _best_classes(scores, class_names, top_k)
      writer.writerow([cell(name), *classes, note])
    count += len(names)
  if broken and (not skip_broken or len(broken) == count):
    raise InputError(_describe_broken(broken, count))
  for name in others:
    writer.writerow([cell(name), *["", ""] * top_k, _OTHER_NOTE])
  return text.getvalue(), count - len(broken)


def write_table(out: Path, table: str, *, overwrite: bool = False) -> None:
  """Writes a table of predictions: whole or not at all, of mode 0600.

  It is as private as the images.

  Args:
    out: a path or a URL.
    table: the text of the file, CSV.
    overwrite: whether a file that is there is replaced, or is an error.

  Raises:
    InputError: something is at `out`, and is not to be overwritten.
    RunError: the disk refuses.
  """
  content = table.encode()
  # Both ways the table appears whole: a new one by a step that can only create,
  # an old one is replaced by a rename.
  if not overwrite:
    if not places.write_new(out, content):
      raise InputError(
        f"--out {out} exists already; name a new file, or give --overwrite."
      )
    return
  places.replace(out, content)


def cell(name: str) -> str:
  """Escapes a name for a spreadsheet and a terminal.

  >>> cell("cat.png"), cell("=HYPERLINK(1)")
  ('cat.png', "'=HYPERLINK(1)")
  """
  shown = escaped(name).replace("\n", "\\n").replace("\t", "\\t")
  if shown.startswith(_FORMULA_SIGNS):
    return f"'{shown}"
  return shown


def _column_names(top_k: int) -> list[str]:
  names = ["image", "class", "logit"]
  for rank in range(2, top_k + 1):
    names += [f"class_{rank}", f"logit_{rank}"]
  return names


def _best_classes(
  scores: np.ndarray, class_names: Sequence[str], top_k: int
) -> list[str]:
  """The names and logits of the best classes; empty cells for NaN."""
  # Stable: of equal ones the first, as `evaluate` counts.
  best = np.argsort(-scores, kind="stable")[:top_k]
  cells = []
  for label in best:
    if np.isnan(scores[label]):
      cells += ["", ""]
    else:
      cells += [class_names[label], f"{scores[label]:.6g}"]
  return cells


def _describe_broken(broken: Sequence[str], count: int) -> str:
  named = "; ".join(broken[:_MOST_NAMED])
  if len(broken) > _MOST_NAMED:
    named += f"; and {len(broken) - _MOST_NAMED} more"
  return (
    f"{len(broken)} of {count} images cannot be decoded: {named}. Fix or remove"
    " them, or use --on-decode-error skip."
  )
