"""What to run: the configuration schema and one file per experiment."""
