"""What `import oneshot_dp` promises, also to who has no type checker."""

import ast
import json
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import oneshot_dp

HEAVY = (
  "apache_beam",
  "array_record",
  "dp_accounting",
  "jax",
  "numpy",
  "optax",
  "tensorflow_datasets",
)


def printed(code: str) -> str:
  """What a process prints of which nobody checks the types."""
  run = [sys.executable, "-c", code]
  return subprocess.run(run, capture_output=True, text=True, check=True).stdout


def imported_for_types() -> dict[str, str]:
  """Name → module, of the imports under `if TYPE_CHECKING`."""
  source = pathlib.Path(oneshot_dp.__file__)
  (guarded,) = [
    node for node in ast.parse(source.read_text()).body if type(node) is ast.If
  ]
  return {
    alias.name: node.module or ""
    for node in guarded.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
  }


def test_public_names_are_listed_and_come_from_where_type_checkers_are_told():
  listed = re.findall(r"^\| `(\w+)`", oneshot_dp.__doc__ or "", re.MULTILINE)
  assert sorted(listed) == sorted(set(listed)) == oneshot_dp.__all__
  of_types = imported_for_types()
  # What needs scikit-learn, of which type checkers know nothing.
  homes = dict(oneshot_dp._HOMES)
  homes.pop("DPLinearClassifier")
  assert of_types == {n: f"oneshot_dp.{home}" for n, home in homes.items()}
  assert sorted(of_types) == oneshot_dp.__all__
  for name, home in of_types.items():
    assert getattr(oneshot_dp, name).__module__ == home
  # No name is a module's: importing the module would put it where the name was.
  modules = {info.name for info in pkgutil.iter_modules(oneshot_dp.__path__)}
  assert not modules & set(oneshot_dp.__all__)
  assert set(oneshot_dp.__all__) <= set(dir(oneshot_dp))
  with pytest.raises(AttributeError, match=r"'oneshot_dp' has no .*'nothing'"):
    _ = oneshot_dp.nothing


def test_nothing_heavy_is_imported_before_it_is_used():
  code = (
    "import sys, oneshot_dp, oneshot_dp.configs.head_config\n"
    "dir(oneshot_dp)\n"
    f"print([name for name in {HEAVY} if name in sys.modules])"
  )
  assert printed(code) == "[]\n"


SCRIPT = """
import json
import numpy as np
import oneshot_dp

embeddings = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
labels = np.repeat([0, 1, 2], 50)
given = dict(num_classes=3, epsilon=18.0, delta=1e-4)
charges, refused = [], []
for change in ({"source": 7}, {"head": 3}, {"start": "cat"},
               {"epsilon": "1"}, {"delta": "1e-4"}, {"num_classes": 2.5},
               {"num_classes": "3"}, {"num_classes": float("nan")}):
  try:
    oneshot_dp.train_head(embeddings, labels, **given | change,
                          charge=lambda *given: charges.append(given))
  except oneshot_dp.configs.errors.InputError as error:
    refused.append(str(error))
try:
  oneshot_dp.train_heads(embeddings, labels, num_classes=3, epsilons=4,
                         delta=1e-4)
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


@pytest.mark.long
def test_wrong_types_are_refused_in_a_line_and_numbers_of_numpy_are_not():
  refused, charges, receipt = json.loads(printed(SCRIPT))
  assert refused == [
    "source=7 must be a oneshot_dp.NoiseSource.",
    "head=3 must be one of auto, lamb, adam, momentum, prototypes,"
    " least_squares.",
    "start is <U3 (): give numbers of shape (3, 3), a vector for each class.",
    "epsilon='1' must be a number.",
    "delta='1e-4' must be a number.",
    "num_classes=2.5 must be a whole number of 2 or more.",
    "num_classes='3' must be a number.",
    "num_classes=nan must be a whole number of 2 or more.",
    "epsilons=4 must be a sequence of numbers, such as (0.5, 2, 8).",
    "save_head takes a head, and then where to save it.",
  ]
  assert charges == 0
  assert receipt["follows"]["epsilon"] == 5.0
  assert receipt["stated"]["num_classes"] == 3


WRONG_TYPES = """
import json
import numpy as np
import oneshot_dp
from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.linear_dp.heads.linear_head import LinearHead

def train(**change):
  given = dict(num_classes=3, epsilon=1.0, delta=1e-4) | change
  oneshot_dp.train_head(np.eye(3), [0, 1, 2], **given)

HEAD = LinearHead(kernel=np.eye(3), bias=np.zeros(3))
refused = []
for call in (
  lambda: oneshot_dp.noise_multiplier("1", 1e-6),
  lambda: oneshot_dp.mu_squared_from_epsilon(1.0, "1e-6"),
  lambda: oneshot_dp.epsilon_of("1", 1e-6),
  lambda: train(weak_privacy="no"),
  lambda: train(balanced="no"),
  lambda: train(charge=3),
  lambda: SourceConfig(location="photos"),
  lambda: SourceConfig(location=(1,)),
  lambda: SourceConfig(location=("photos",), class_names="cat"),
  lambda: SourceConfig(location=("photos",), num_classes="3"),
  lambda: oneshot_dp.open_source("photos"),
  lambda: oneshot_dp.open_cache("cache", 3),
  lambda: oneshot_dp.load_backbone(3),
  lambda: oneshot_dp.load_backbone("glyph_vit", compute_dtype="int8"),
  lambda: oneshot_dp.load_head(3),
  lambda: oneshot_dp.write_cache("c", 3, []),
  lambda: oneshot_dp.write_cache(3, 3, []),
  lambda: oneshot_dp.evaluate_heads(3, []),
  lambda: oneshot_dp.evaluate_heads([], 3),
  lambda: oneshot_dp.evaluate_heads([HEAD], [3]),
  lambda: oneshot_dp.evaluate_heads(
    [HEAD], [{"embedding": np.eye(3), "label": np.array([0, 1])}]
  ),
):
  try:
    call()
  except InputError as error:
    refused.append(str(error))
print(json.dumps(refused))
"""


@pytest.mark.long
def test_text_for_numbers_truth_values_or_several_names_is_refused_by_name():
  # In a process of its own, as annotations are checked in this one.
  assert json.loads(printed(WRONG_TYPES)) == [
    "epsilon='1' must be a number.",
    "delta='1e-6' must be a number.",
    "mu_squared='1' must be a number.",
    "weak_privacy='no' must be True or False.",
    "balanced='no' must be True or False.",
    "charge=3 must be a function, or None.",
    "location='photos' must be a tuple of strings, such as ('a',).",
    "location=(1,) must be a tuple of strings, such as ('a',).",
    "class_names='cat' must be a tuple of strings, such as ('a',).",
    "num_classes='3' must be a whole number.",
    "config='photos' must be a SourceConfig(location=('photos',)).",
    "rows=3 must be a part, such as '[:80%]'.",
    "name=3 must be the name of a backbone.",
    "compute_dtype='int8' must be float32 or bfloat16.",
    "3 must be a path.",
    "info=3 must be a CacheInfo.",
    "out=3 must be a path or a URL.",
    "heads must be a list of LinearHeads or PrivateHeads.",
    'blocks must be an iterable of dicts with "embedding" and "label".',
    'a block must be a dict with "embedding" and "label".',
    '"embedding" [3, 3] must be [r, d], and "label" [2] of int64 integers [r].',
  ]
