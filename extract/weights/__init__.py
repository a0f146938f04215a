"""Pretrained weights from wherever they are, once, whole and checked."""
