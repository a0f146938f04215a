"""Commands that train heads and score them."""
