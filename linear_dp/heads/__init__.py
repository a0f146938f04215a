"""Private heads: a new one is one file here, and one row in `train.HEADS`."""
