"""What the tests of the first stage share."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compilation():
  """Programs that run for milliseconds need not be optimized for seconds."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)
