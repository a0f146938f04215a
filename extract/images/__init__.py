"""From the bytes of an image to what a backbone is shown."""
