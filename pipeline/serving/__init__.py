"""A saved head at work: predictions for images, and exports to elsewhere."""
