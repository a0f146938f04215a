"""The paper's step: clipping, exact_sum, release, step, read in this order."""
