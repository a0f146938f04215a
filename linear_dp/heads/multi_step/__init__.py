"""Noisy steps with every choice open."""
