"""Images that are in a cache twice, or in two caches."""
