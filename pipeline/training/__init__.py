"""From a cache to private heads: checked, charged, trained."""
