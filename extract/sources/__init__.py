"""Labelled images, from where people keep them.

A new source goes here: one file, one row in `open_source`, and a dataclass for
its settings in `configs/extract_config.py`.
"""
