"""Commands that read or import a cache."""

import numpy as np

from oneshot_dp.pipeline.cli import main
from tests.pipeline.command_line import (
  one_line,
  succeeds,
)


class TestCaches:
  def test_verify_names_every_fault(self, capsys, spoilt):
    for shard in sorted(spoilt.glob("*.array_record-*"))[:2]:
      shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert main(["verify", str(spoilt)]) == 2
    *faults, error = capsys.readouterr().err.splitlines()
    assert len(faults) >= 2
    assert f"{spoilt}: {len(faults)} fault(s) found." in one_line(error)

  def test_a_sound_cache_verifies(self, place, capsys):
    out, err = succeeds(capsys, *place("verify {train}"))
    assert out == "ok: 3 shards, 180 rows\n"
    assert err == ""


class TestImport:
  def test_it_describes_the_cache(self, capsys, tmp_path):
    file = tmp_path / "features.npz"
    np.savez(
      file,
      test_embedding=np.ones((5, 3), np.float32),
      test_label=np.zeros(5, int),
    )
    argv = ["import-features", file, "--split", "test", "--num-classes", 2]
    out, err = succeeds(capsys, *argv, "--out", tmp_path / "cache")
    assert "features, split test" in out
    assert "3 x float32" in out
    assert "warning: without --backbone-name" in err
