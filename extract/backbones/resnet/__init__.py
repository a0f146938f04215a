"""Residual networks: BiT, NF-ResNet, NFNet and WRN.

A new one is a file beside them and a row in `backbones.registry`.
"""
