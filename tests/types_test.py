"""The suite checks types: the conftest's hook, with a shortcut of its own."""

import os

import jaxtyping
import numpy as np
import pytest

from oneshot_dp.linear_dp.heads.linear_head import LinearHead

pytestmark = pytest.mark.skipif(
  os.environ.get("ONESHOT_DP_CHECK_TYPES") == "0", reason="unchecked here"
)


@pytest.mark.parametrize("bias", [np.zeros(4), np.zeros(3, int)])
def test_arrays_of_other_shapes_and_dtypes(bias):
  with pytest.raises(jaxtyping.TypeCheckError):
    LinearHead(kernel=np.zeros((2, 3), np.float32), bias=bias, unit_norm=True)


def test_sizes_of_one_name_in_arguments_and_results():
  @jaxtyping.jaxtyped(typechecker=None)
  def second(
    _: jaxtyping.Int[np.ndarray, "n"], of_two: jaxtyping.Int[np.ndarray, "m"]
  ) -> jaxtyping.Int[np.ndarray, "n"]:
    return of_two

  two = np.zeros(2, int)
  three = np.zeros(3, int)
  assert second(two, two) is two
  assert second(three, three) is three  # sizes are of one call
  with pytest.raises(jaxtyping.TypeCheckError):
    second(two, three)
