import copy
import dataclasses
import importlib
import pickle
import pkgutil

import numpy as np
import pytest

from oneshot_dp import linear_dp
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.trainer import TrainingRows

MARK = 48_151_623
MODULES = [
  importlib.import_module(module.name)
  for module in pkgutil.walk_packages(
    linear_dp.__path__, f"{linear_dp.__name__}."
  )
]
SECRETS = sorted(Secret.__subclasses__(), key=lambda cls: cls.__name__)
LEAKS = {
  "pickle": pickle.dumps,
  "pickle inside": lambda secret: pickle.dumps({"a": [secret]}, protocol=2),
  "copy": copy.copy,
  "deepcopy": copy.deepcopy,
}


def filled(cls):
  """An instance of which every private attribute has the mark."""
  secret = object.__new__(cls)
  fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
  for name in (*(field.name for field in fields), "_private"):
    secret.__dict__[name] = np.full((2, 2), MARK)
  for name in cls.public:
    secret.__dict__[name] = 2
  return secret


def test_the_secrets_of_today_are_among_them():
  assert {cls.__name__ for cls in SECRETS} >= {
    "ArrayRows",
    "ChosenRows",
    "SecretClassMoments",
    "SecretGradient",
    "SecretHits",
    "SecretRows",
    "SecretSum",
    "StepRows",
    "UnitSizes",
  }


def test_nothing_else_has_a_secret_field():
  for module in MODULES:
    for cls in filter(dataclasses.is_dataclass, vars(module).values()):
      names = {field.name for field in dataclasses.fields(cls)}
      if any(name.startswith("secret_") for name in names):
        assert issubclass(cls, Secret), cls


def test_rows_to_train_on_show_public_sizes_alone():
  rows = TrainingRows(
    blocks=list,
    feature_dim=2,
    num_classes=3,
    num_examples=4,
    num_rows=MARK,
  )
  assert "num_examples=4" in repr(rows)
  assert str(MARK) not in repr(rows)
  assert "blocks" not in repr(rows)


@pytest.mark.parametrize("cls", SECRETS, ids=lambda cls: cls.__name__)
class TestEverySecret:
  def test_shows_its_name_and_what_is_public(self, cls):
    public = "".join(f"{name}=2, " for name in cls.public)
    expected = f"{cls.__name__}({public}<private>)"
    secret = filled(cls)
    assert {repr(secret), str(secret), f"{secret}"} == {expected}
    assert repr([secret]) == f"[{expected}]"
    assert set(cls.public) <= {"num_examples", "feature_dim", "num_classes"}
    # Its n is the rows counted; those of a part are not public.
    assert cls.__name__ != "SecretHits" or "num_examples" not in cls.public

  @pytest.mark.parametrize("leak", LEAKS)
  def test_is_never_serialised_or_copied(self, cls, leak):
    with pytest.raises(TypeError, match="is private and is never serialised"):
      LEAKS[leak](filled(cls))

  def test_equals_nothing_but_itself(self, cls):
    """Comparing is no oracle for what it holds."""
    assert filled(cls) != filled(cls)
    assert cls.__eq__ is object.__eq__
