"""What a job's source consists of: made once, and the same for all workers.

The listing is private. It lies with the unfinished cache, for the workers; of a
finished one its SHA-256 is in `shards.json`, which stays with the private data,
as does `skipped.json`: which images were left out, and where they are. A runner
shows what it runs: workers are given a hash of random bits and the listing,
which tells nothing to whoever guesses that. It may be larger than memory.
"""

import hashlib
import itertools
import os
import secrets
import threading
import weakref
from collections.abc import Iterator

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import POSITION_IDS, ExtractConfig
from oneshot_dp.configs.split_part import SplitPart
from oneshot_dp.extract.cache.info import (
  INCOMPLETE_DIR,
  LISTING_SHA256,
  SHARDS_FILE,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.shard_writer import forget_shards
from oneshot_dp.extract.sources.example import Source
from oneshot_dp.extract.sources.file_list import mended
from oneshot_dp.extract.sources.open_source import open_source
from oneshot_dp.extract.storage.durable_files import json_bytes
from oneshot_dp.extract.storage.fetch_ahead import Buffer
from oneshot_dp.extract.storage.scratch import mapped
from oneshot_dp.extract.storage.store import Store, store_at
from oneshot_dp.extract.storage.typed_json import stored_json

_FILE = f"{INCOMPLETE_DIR}/listing"
_RANDOM = 32
"""Bytes before the listing."""
_PART_BYTES = 16 << 20
"""What is more comes in further files, each in memory by itself."""
SKIPPED_FILE = "skipped.json"
"""example_id → where it is, of each image that a cache leaves out; private."""
_OPENING = threading.Lock()
_OPENED = weakref.WeakValueDictionary[tuple[str, str, str], Source]()
"""A source is opened once per process, the one that launches a job included."""


def open_split(config: ExtractConfig, listing: Buffer | None = None) -> Source:
  """The source of a job: all of the split that it asks for a part of."""
  split = SplitPart.of(config.split).split
  return open_source(config.source, split, listing)


def listing_sha256(source: Source) -> str:
  """Private, as the source is."""
  return hashlib.sha256(source.listing).hexdigest()


def keep_listing(
  out: str | os.PathLike, config: ExtractConfig, source: Source
) -> str:
  """Writes it for the workers; refuses a job that began with another.

  Files that were mended since, and keep their names, are read again: their
  shards are forgotten. The SHA-256 returned tells nothing of the listing.
  """
  store = store_at(out)
  kept = _kept(store)
  if kept and kept[1] == source.listing:
    random, _ = kept
  else:
    if kept:
      changed = mended(kept[1], source.listing)
      if changed is None:
        raise _another(out, source)
      forget_shards(out, {i // config.shard_rows for i in changed})
    random = _keep(store, source.listing)
  sha256 = _kept_sha256(random, source.listing)
  _OPENED[_key(config, sha256)] = source
  return sha256


def _keep(store: Store, listing: Buffer) -> bytes:
  """Writes a listing, its first file last; returns the bits before it."""
  random = secrets.token_bytes(_RANDOM)
  parts = range(0, len(listing), _PART_BYTES)
  for number, at in reversed(list(enumerate(parts))):
    part = bytes(listing[at : at + _PART_BYTES])
    if number:
      store.put(_more_file(random, number), part)
    else:
      store.put(_FILE, random + part)
  return random


def _kept(store: Store) -> tuple[bytes, memoryview] | None:
  """The bits before the listing that lies there, and it; None if none does."""
  try:
    first = store.read(_FILE)
  except FileNotFoundError:
    return None
  random, part = first[:_RANDOM], first[_RANDOM:]

  def parts(part: bytes) -> Iterator[bytes]:
    for number in itertools.count(1):
      yield part
      if len(part) < _PART_BYTES:
        return
      try:
        part = store.read(_more_file(random, number))
      except FileNotFoundError:
        return

  return random, mapped(parts(part))


def _more_file(random: bytes, number: int) -> str:
  """A name for this listing only: parts of another are never read with it."""
  return f"{_FILE}-{random[:8].hex()}-{number:05d}"


def _kept_sha256(random: bytes, listing: Buffer) -> str:
  found = hashlib.sha256(random)
  found.update(listing)
  return found.hexdigest()


def check_listing(out: str | os.PathLike, source: Source) -> None:
  """Refuses a finished cache of another listing; old caches name none."""
  store = store_at(out)
  listed = stored_json(store, SHARDS_FILE).get(LISTING_SHA256)
  if listed not in (None, listing_sha256(source)):
    raise _another(out, source)


def name_skipped(cache: FeatureCache, source: Source) -> None:
  """Says in a file, for the holder alone, which images were left out.

  An id that is no position was read off the image's name, and says it all.
  """
  if ids := cache.info.skipped_example_ids:
    known = source.id_source == POSITION_IDS
    where = {str(i): source.where(i) if known else None for i in ids}
    cache.store.put(SKIPPED_FILE, json_bytes(where))


def _another(out: str | os.PathLike, source: Source) -> InputError:
  return InputError(
    f"{out} belongs to another job: files of {source.name} came, went or"
    " changed since it began; choose another --out, or delete it to start"
    " again."
  )


def shared_source(
  config: ExtractConfig, out: str | os.PathLike, sha256: str
) -> Source:
  """This process's source, of the listing that the job began with."""
  key = _key(config, sha256)
  with _OPENING:
    if (source := _OPENED.get(key)) is None:
      kept = _kept(store_at(out))
      if kept is None or _kept_sha256(*kept) != sha256:
        raise RunError(f"{out}: the listing of the source was changed.")
      _OPENED[key] = source = open_split(config, kept[1])
  return source


def _key(config: ExtractConfig, sha256: str) -> tuple[str, str, str]:
  return repr(config.source), config.split, sha256
