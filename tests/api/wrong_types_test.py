"""What callers see who have no type checker (the suite runs under one)."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json

import numpy as np

import oneshot_dp

embeddings = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
labels = np.repeat([0, 1, 2], 50)
given = dict(num_classes=3, epsilon=18.0, delta=1e-4)


def refused(**changes):
  charges = []
  try:
    oneshot_dp.train_head(
      embeddings,
      labels,
      **given | changes,
      charge=lambda *_: charges.append(True),
    )
  except Exception as error:
    return type(error).__name__, str(error), len(charges)
  return "nothing", "", len(charges)


found = {
  "source": refused(source=7),
  "head": refused(head=3),
  "start": refused(start="cat"),
}
numpy_numbers = oneshot_dp.train_heads(
  embeddings,
  labels.astype(np.uint8),
  num_classes=np.int32(3),
  epsilons=np.array([5, 6]),
  delta=np.float32(1e-4),
)
found["receipt"] = numpy_numbers[0].receipt()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
  """What the script printed."""
  run = subprocess.run(
    [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
  )
  return json.loads(run.stdout)


@pytest.mark.parametrize(
  ("case", "message"),
  [
    ("source", "source=7 must be a oneshot_dp.NoiseSource."),
    ("head", "head=3 must be one of auto, lamb, adam, momentum."),
    (
      "start",
      "start is <U3 (): give numbers of shape (3, 3), a vector for each class.",
    ),
  ],
)
def test_is_refused_in_one_line_before_the_charge(found, case, message):
  assert found[case] == ["InputError", message, 0]


def test_numbers_of_numpy_leave_a_receipt_that_is_json(found):
  stated, follows = found["receipt"]["stated"], found["receipt"]["follows"]
  assert follows["epsilon"] == 5.0
  assert stated["num_classes"] == 3
