"""Residual networks: BiT, NF-ResNet and NFNet.

A new one is a file beside them and a row in `backbones.registry`.
"""
