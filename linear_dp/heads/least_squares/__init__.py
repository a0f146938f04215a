"""A linear discriminant from noisy moments, in closed form."""
