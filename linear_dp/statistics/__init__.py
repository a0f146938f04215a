"""Secret sums of the heads beyond one step, and the doors they leave by.

A new statistic comes here: a `Secret`, its sensitivity, and its release.
"""
