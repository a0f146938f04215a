"""Labelled images, from where people keep them.

A new source goes here: one file, and one row in `open_source`.
"""
