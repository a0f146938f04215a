"""Features that somebody else computed, into a cache."""
