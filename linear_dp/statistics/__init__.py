"""Secret sums of the heads beyond one step, and the doors they leave by."""
