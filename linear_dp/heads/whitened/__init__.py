"""Private whitening, then noisy steps."""
