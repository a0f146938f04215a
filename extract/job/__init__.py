"""The extraction job: from a source to a cache, shard by shard, on Beam."""
