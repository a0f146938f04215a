"""Private heads beyond the paper's.

A new head goes here: one folder, and one row in `registry`.
"""
