"""Commands that make caches and look at them."""
