"""The experiments of the literature: ablations and figures.

A new one is a run (see `runs.run.Run`) and a table of its own.
"""
