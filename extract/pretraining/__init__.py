"""How the embedded weights of `glyph_vit` are made, from nothing private."""
