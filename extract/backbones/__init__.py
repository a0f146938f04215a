"""Frozen public feature extractors.

names.py lists the published ones, family.py the network architectures, and
backbone.py loads one by its name. A published network of a known architecture
is a record in names.py; a new architecture is a file and a row in family.py.
"""
