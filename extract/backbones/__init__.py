"""Frozen public feature extractors, by name: see registry.py."""
