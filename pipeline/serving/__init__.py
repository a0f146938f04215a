"""What is done with a head: predictions, and other tools."""
