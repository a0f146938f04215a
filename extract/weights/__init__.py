"""Pretrained weights: from wherever they are, once; read whole, or refused."""
