"""What callers see who have no type checker (the suite runs under one)."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import os
import sys

import numpy as np

import oneshot_dp

embeddings = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
labels = np.repeat([0, 1, 2], 50)
given = dict(num_classes=3, epsilon=50.0, delta=1e-4)


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


def not_written(**changes):
  given = dict(dataset="pets", num_classes=3) | changes
  try:
    oneshot_dp.write_cache(sys.argv[1], embeddings, labels, **given)
  except Exception as error:
    return type(error).__name__, str(error), os.path.exists(sys.argv[1])
  return "nothing", "", True


found = {
  "relation": refused(neighboring_relation="REPLACE_ONE"),
  "source": refused(source=7),
  "epsilon": refused(epsilon="2"),
  "delta": refused(delta="1e-6"),
  "classes": refused(num_classes=3.0, head="whitened"),
  "class names": not_written(class_names=[1, 2, 3]),
  "data set": not_written(dataset=7),
  "classes of a cache": not_written(num_classes=3.0),
}
numpy_numbers = oneshot_dp.train_heads(
  embeddings,
  labels,
  num_classes=np.int32(3),
  epsilons=np.array([50, 60]),
  delta=np.float32(1e-4),
)
found["receipt"] = numpy_numbers[0].receipt()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Any]:
  """What the script printed."""
  cache = tmp_path_factory.mktemp("caches") / "cache"
  run = subprocess.run(
    [sys.executable, "-c", SCRIPT, str(cache)],
    capture_output=True,
    text=True,
    check=True,
  )
  return json.loads(run.stdout)


@pytest.mark.parametrize(
  ("case", "message"),
  [
    (
      "relation",
      "neighboring_relation='REPLACE_ONE' must be a"
      " dp_accounting.NeighboringRelation.",
    ),
    ("source", "source=7 must be a oneshot_dp.NoiseSource."),
    ("epsilon", "epsilon='2' must be a number."),
    ("delta", "delta='1e-6' must be a number."),
    ("classes", "num_classes=3.0 must be an integer, K."),
  ],
)
def test_is_refused_in_one_line_before_the_charge(found, case, message):
  assert found[case] == ["InputError", message, 0]


@pytest.mark.parametrize(
  ("case", "message"),
  [
    ("class names", "class_names[0]=1 must be a name, and not blank."),
    ("data set", "dataset=7 must be a name, and not blank."),
    ("classes of a cache", "num_classes=3.0 must be at least 1 and whole."),
  ],
)
def test_is_refused_before_a_cache_is_begun(found, case, message):
  assert found[case] == ["InputError", message, False]


def test_numbers_of_numpy_leave_a_receipt_that_is_json(found):
  receipt = found["receipt"]
  assert receipt["privacy"]["epsilon"] == 50.0
  assert receipt["data"]["num_classes"] == 3
