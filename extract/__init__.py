"""Stage 1: images through a frozen backbone into a feature cache."""
