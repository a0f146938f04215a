"""Labeled images, from where people keep them; a new kind is one file here."""
