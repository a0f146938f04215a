"""Extraction jobs: a loop here, or Beam, over shards that are put once."""
