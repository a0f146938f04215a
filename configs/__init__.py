"""What to run: the settings of both stages."""
