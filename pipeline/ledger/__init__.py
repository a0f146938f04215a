"""What was spent of each private data set, and runs that are paid for once."""
