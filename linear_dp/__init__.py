"""Stage 2: exact clipped sums of cached features into private heads, no I/O."""
