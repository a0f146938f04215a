"""Exit statuses, and keys of `--json`, of all commands are what they were."""

import json
import pathlib

import pytest

from oneshot_dp.pipeline.cli.program import COMMANDS
from tests.golden import command_lines

golden = json.loads(
  pathlib.Path(__file__).with_name("commands.json").read_text()
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  """All lines, run one after the other in one folder."""
  folder = tmp_path_factory.mktemp("commands")
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    command_lines.make_folder(folder)
    return command_lines.run_lines()


@pytest.mark.slow
@pytest.mark.parametrize("line", command_lines.LINES)
def test_command_ends_with_its_status_and_says_its_keys(line, results):
  assert results[line] == golden[line]


def test_every_command_is_pinned_with_a_success_and_a_failure():
  assert golden.keys() == set(command_lines.LINES)
  succeeded = {line.split()[0] for line in golden if not golden[line]["status"]}
  failed = {line.split()[0] for line in golden if golden[line]["status"]}
  assert succeeded == COMMANDS.keys()
  assert failed == COMMANDS.keys()
