"""Heads on the disk: weights, receipt, card, and who vouches for them."""
