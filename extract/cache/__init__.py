"""The feature cache: its format, and all that writes, reads and checks it."""
