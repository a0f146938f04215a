"""A head on disk: weights, receipt, model card, and what `verify` says."""
