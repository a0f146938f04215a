"""A page about a run or a head, for the browser."""
