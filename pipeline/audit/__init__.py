"""Attacks on the mechanisms, and the lower bounds of ε that they prove."""
