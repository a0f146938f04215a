"""What was spent of each private data set, and what may be."""
