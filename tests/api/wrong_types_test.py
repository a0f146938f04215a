"""What callers see who have no type checker (the suite runs under one)."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
import numpy as np
import oneshot_dp

embeddings = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
labels = np.repeat([0, 1, 2], 50)
given = dict(num_classes=3, epsilon=18.0, delta=1e-4)
charges, refused = [], []
for change in ({"source": 7}, {"head": 3}, {"start": "cat"}):
  try:
    oneshot_dp.train_head(embeddings, labels, **given | change,
                          charge=lambda *given: charges.append(given))
  except oneshot_dp.configs.errors.InputError as error:
    refused.append(str(error))
try:
  oneshot_dp.save_head("a folder", "a head", dataset="pets")
except oneshot_dp.configs.errors.InputError as error:
  refused.append(str(error))
(first, _) = oneshot_dp.train_heads(
  embeddings, labels.astype(np.uint8), num_classes=np.int32(3),
  epsilons=np.array([5, 6]), delta=np.float32(1e-4))
print(json.dumps([refused, len(charges), first.receipt()]))
"""


@pytest.mark.slow
def test_wrong_types_are_refused_in_a_line_and_numbers_of_numpy_are_not():
  run = subprocess.run(
    [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
  )
  refused, charges, receipt = json.loads(run.stdout)
  assert refused == [
    "source=7 must be a oneshot_dp.NoiseSource.",
    "head=3 must be one of auto, lamb, adam, momentum.",
    "start is <U3 (): give numbers of shape (3, 3), a vector for each class.",
    "save_head takes a head, and then where to save it.",
  ]
  assert charges == 0
  assert receipt["follows"]["epsilon"] == 5.0
  assert receipt["stated"]["num_classes"] == 3
