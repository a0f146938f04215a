"""Many heads at once: sweeps, comparisons, their tables and pictures.

A new run takes a `run.Run`, and checks and writes with it.
"""
