"""Exactly sampled Gaussian noise, and where its random bits come from."""
