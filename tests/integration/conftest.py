"""A ledger of each test's own, as the tests of the pipeline have it."""

from tests.pipeline.conftest import ledger_dir as ledger_dir
