"""Private heads: a new one is a file here and a row in `registry.HEADS`."""
