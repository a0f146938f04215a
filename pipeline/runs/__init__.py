"""Many heads at once: sweeps, comparisons, their tables and pictures."""
