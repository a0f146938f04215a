"""What a person runs: the command line, both stages in order."""
