"""`train` and `sweep`, killed at random moments and run again.

ONESHOT_DP_KILLS=200 pytest tests/faults/commands_test.py   is the long form.
"""

import contextlib
import random
import subprocess
import time

import pytest

from oneshot_dp.pipeline.ledger import deliver
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.faults.harness import KILLS
from tests.pipeline.command_line import start
from tests.sample_caches import write_clusters

COMMANDS = {
  "train": "train --epsilon 2 --head auto",
  "sweep": "sweep --eval-cache TEST --epsilons 1 4 --head lamb",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_commands_have_one_charge_and_one_set_of_heads(tmp_path, name):
  train, test = tmp_path / "train", tmp_path / "test"
  write_clusters(train)
  write_clusters(test, split="test", seed=1)
  results, path = tmp_path / "results", tmp_path / "state" / "ledger.sqlite"
  results.mkdir()

  def run(out, seconds=300.0):
    """What it says of how it ended; it is killed after so long: None."""
    line = f"{COMMANDS[name]} --cache {train} --delta 1e-5 --out {out}"
    words = line.replace("TEST", str(test)).split()
    process = start([*words, "--ledger", path])
    with contextlib.suppress(subprocess.TimeoutExpired):
      err = process.communicate(timeout=seconds)[1]
      assert process.returncode == 0 or "is there already" in err
      return err
    process.kill()
    process.communicate()
    return None

  begun = time.monotonic()
  run(results / "first")
  longest = time.monotonic() - begun
  draw, kills, runs = random.Random(name), 0, 1
  while kills < KILLS:
    out = results / f"run-{runs}"
    while not out.exists() and kills < KILLS:
      kills += run(out, draw.random() * longest) is None
    assert run(out) is not None  # at last, or it clears up
    runs += 1
    assert len([*results.iterdir()]) == runs
    shown = deliver._heads_in(results)
    assert shown == Ledger(path).heads()
    charged = [each.id for each in Ledger(path).entries()]
    assert {each.charge for each in shown.values()} == {*charged}
    assert len(charged) == runs
