"""What (ε, δ) means to somebody who guesses, by the definition alone."""

import math


def right_guesses(epsilon: float, delta: float) -> float:
  """The most often that a guess at even odds can be right.

      (e^ε + δ) / (e^ε + 1)

  Whoever must tell two neighbouring data sets apart, each as likely as the
  other, knowing everything else and seeing the release.

  >>> round(right_guesses(1.0, 0.0), 3), right_guesses(0.0, 0.0)
  (0.731, 0.5)

  Source: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential
  Privacy", ICML 2015, theorem 2.1.
  """
  # e^ε overflows where the answer is 1 long since.
  return (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))


def found(epsilon: float, delta: float, false_alarms: float) -> float:
  """The most of the members that a test finds at a rate of false alarms.

      min( e^ε·α + δ,  1 − e^(−ε)·(1 − δ − α) )

  >>> found(0.0, 0.0, 0.01)
  0.01

  Source: as `right_guesses`.
  """
  # The first bound, at any ε that is of interest, before it overflows.
  first = math.exp(min(epsilon, 700)) * false_alarms + delta
  return min(first, 1 - math.exp(-epsilon) * (1 - delta - false_alarms), 1.0)
