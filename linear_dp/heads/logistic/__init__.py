"""Logistic regression without privacy, to compare with."""
