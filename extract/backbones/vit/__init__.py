"""Vision transformers: ViT, DeiT, DINOv2, SigLIP and the embedded glyph_vit.

A new one is a row in `families`.
"""
