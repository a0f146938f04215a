"""`oneshot-dp inspect`."""

import dataclasses
from pathlib import Path

from tyro.conf import Positional

from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Print what is in a cache: data set, backbone, sizes, fingerprints.

  Example: oneshot-dp inspect caches/train
  """

  cache: Positional[Path]
  """Directory of the cache."""


def run(flags: Flags) -> Answer:
  """Describes it."""
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.extract.cache.summary import describe, owners_metadata

  cache = open_cache(flags.cache)
  return Answer(
    text=describe(cache),
    facts={"cache": cache.path, "metadata": owners_metadata(cache)},
  )
