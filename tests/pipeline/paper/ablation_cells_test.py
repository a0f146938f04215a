"""Which heads an ablation is made of."""

import dataclasses
import re
from typing import Any, get_args

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import AblationAxis, HeadConfig, StepsConfig
from oneshot_dp.pipeline.paper.ablation_cells import BASE, Cell, Choices, cells

CHOICES = Choices(init_scales=(1e-4, 1.0), batch_sizes=(60, 20))


def chosen(**changes: Any) -> list[Cell]:
  return cells(dataclasses.replace(CHOICES, **changes), ["train"])


def test_the_base_is_the_papers_step_and_comes_first():
  base, *others = chosen()
  assert (base.axis, base.head, base.cache) == (BASE, HeadConfig(), 0)
  assert BASE not in {cell.axis for cell in others}


def test_every_axis():
  tried = {
    "optimizer": ["adam", "momentum"],
    "init": ["normal 0.0001", "normal 1", "lecun"],
    "epochs": ["10"],
    "batch": [
      f"{size}, {sampling}, {epochs}"
      for size in (60, 20)
      for epochs in ("1 epoch", "10 epochs")
      for sampling in ("poisson", "partition")
    ],
    "clip": ["0.1", "10"],
  }
  found = [(cell.axis, cell.setting) for cell in chosen()[1:]]
  assert found == [(axis, each) for axis in tried for each in tried[axis]]
  for axis in get_args(AblationAxis):
    assert {cell.axis for cell in chosen(axes=(axis,))} == {BASE, axis}


def test_one_thing_is_changed_at_a_time():
  """A batch is a size, a kind and a number of passes; all else stays."""
  # One full-batch step of LAMB from zero, as table 4 has it.
  papers = {
    "optimizer": "lamb",
    "epochs": 1,
    "l2_clip_norm": 1.0,
    "loss": "sigmoid",
    "initial_bias": -10.0,
    "unit_norm": False,
  }
  fields = dataclasses.asdict(StepsConfig()) | papers
  may_change = {
    "init": {"init", "init_scale"},
    "epochs": {"epochs"},
    "batch": {"batch_size", "sampling", "epochs"},
  }
  for cell in chosen():
    if cell.axis in may_change:
      assert cell.head.head == "multi-step"
      steps = dataclasses.asdict(cell.head.steps).items()
      changed = {name for name, value in steps if value != fields[name]}
      assert changed
      assert changed <= may_change[cell.axis]
    elif cell.axis == "optimizer":
      assert cell.head == HeadConfig(head=cell.head.head)
      assert cell.head.head == cell.setting
    elif cell.axis == "clip":
      assert cell.head == HeadConfig(l2_clip_norm=float(cell.setting))


def test_a_learning_rate_is_for_heads_that_depend_on_it():
  for cell in chosen(learning_rate=0.3):
    if cell.head.head != "multi-step":
      assert cell.head.learning_rate == 1.0
    else:
      assert cell.head.steps.learning_rate == 0.3


def test_other_caches_are_resolutions():
  found = cells(CHOICES, ["224", "384", "448"])
  others = [(c.setting, c.cache, c.head) for c in found if c.cache]
  assert others == [("384", 1, HeadConfig()), ("448", 2, HeadConfig())]
  assert {c.axis for c in found if c.cache} == {"resolution"}
  nothing_else = dataclasses.replace(CHOICES, axes=())
  assert len(cells(nothing_else, ["224", "384"])) == 2


def test_nothing_to_change():
  with pytest.raises(InputError, match="nothing to change: give axes"):
    chosen(axes=())
  with pytest.raises(InputError, match="nothing to change"):
    chosen(axes=("epochs",), epochs=())


def test_twice_the_same_is_refused():
  for changes, said in (
    ({"clip_norms": (0.1, 0.1)}, "clip '0.1' is the same as clip '0.1'"),
    ({"epochs": (2, 3, 2)}, "epochs '2' is the same as epochs '2'"),
    ({"batch_sizes": (20, 20)}, "batch '20, poisson, 1 epoch' is the same"),
    ({"init_scales": (1.0, 1.0)}, "init 'normal 1' is the same"),
    # What is the base in other words.
    ({"epochs": (1,)}, "epochs '1' is the same as base"),
    ({"clip_norms": (1.0,)}, "clip '1' is the same as base"),
    # Heads that would be written over each other.
    ({"clip_norms": (0.1, 0.10000001)}, "clip '0.1' is the same as clip"),
  ):
    with pytest.raises(InputError, match="^" + re.escape(said)) as caught:
      chosen(**changes)
    assert str(caught.value).endswith(": leave one of them out.")
  for names in (["a", "384", "384"], ["a", "r 384", "r-384"], ["a", "B", "b"]):
    with pytest.raises(InputError, match="leave one of them out"):
      cells(CHOICES, names)


def test_names_are_those_of_directories():
  names = [cell.name for cell in cells(CHOICES, ["a", "Views 16/384_b"])]
  assert names[0] == "base-lamb-zero-1-epoch-full-batch-clip-1"
  assert "init-normal-0.0001" in names
  assert "batch-60-poisson-10-epochs" in names
  assert names[-1] == "resolution-Views-16-384_b"
