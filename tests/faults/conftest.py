"""Caches and a sweep, as the tests of the pipeline have them."""

from tests.pipeline.conftest import *  # noqa: F403
