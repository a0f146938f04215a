"""The rows of a cache as trainers take them: a host's part, behind a map."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from oneshot_dp.extract.cache.block import Block, stored_norm
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.public_statistics import PublicStatistics
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.trainer import TrainingRows

PUBLIC_MAP = "public map"
"""What other hosts are asked to map their rows by."""


def own_shards(cache: FeatureCache, hosts: Hosts) -> list[int]:
  """The shards that this host reads."""
  shards = np.arange(len(cache.shards))
  return np.array_split(shards, hosts.count)[hosts.index].tolist()


def cache_rows(
  cache: FeatureCache,
  max_rows_per_unit: int | None = None,
  hosts: Hosts = ALONE,
) -> TrainingRows:
  """The rows of a cache, as a trainer takes them; of several hosts, a part."""
  own = own_shards(cache, hosts)
  first = sum(shard.rows for shard in cache.shards[: own[0] if own else 0])
  rows = sum(cache.shards[i].rows for i in own)
  return TrainingRows(
    blocks=lambda: cache.blocks(own),
    hosts=hosts,
    own_rows=range(first, first + rows),
    feature_dim=cache.info.feature_dim,
    num_classes=cache.info.num_classes,
    num_examples=cache.info.public_num_examples,
    num_rows=len(cache),
    most_rows=cache.info.source_num_examples,
    privacy_unit=cache.info.privacy_unit,
    max_rows_per_unit=max_rows_per_unit,
  )


def mapped_by(
  statistics: PublicStatistics, private: TrainingRows
) -> TrainingRows:
  """Private rows behind a public map.

  Formal guarantees: an embedding and its norm are functions of that row alone,
  bit for bit: `PublicStatistics.mapped` and `stored_norm` say why. Whoever adds
  rows up checks the norm again, in integers.
  """

  def blocks() -> Iterator[Block]:
    for block in private.blocks():
      embedding = statistics.mapped(block.embedding)
      yield Block(
        embedding=embedding,
        embedding_norm=stored_norm(embedding),
        label=block.label,
        example_id=block.example_id,
        unit_id=block.unit_id,
      )

  return dataclasses.replace(private, blocks=blocks, are_centred=True)
