"""Data sets that TFDS prepared, and checks before its readers see a file."""
