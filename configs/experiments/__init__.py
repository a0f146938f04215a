"""Experiments, one file each.

A new experiment goes here: a file with a `get_config()`, and its command in the
docstring; the name of the file is what `oneshot-dp extract` is given.
"""
