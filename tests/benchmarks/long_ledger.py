"""What a ledger of many entries costs: CPU seconds, each in its own process.

    python tests/benchmarks/long_ledger.py [--entries 10000]

Prints `budget` and `train` on an empty ledger and on one of so many entries,
and `inspect` of the cache; the least of three runs each.
"""

import argparse
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.pipeline.ledger.long_ledgers import write_long_ledger
from tests.pipeline.sample_caches import write_clusters


def cpu_seconds(line: str, out: pathlib.Path) -> float:
  """The least of three runs, children's CPU time."""
  taken = []
  for _ in range(3):
    shutil.rmtree(out, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-m", "oneshot_dp.pipeline.cli", *line.split()]
    subprocess.run(argv, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken.append(
      after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    )
  return min(taken)


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--entries", type=int, default=10_000)
  entries = parser.parse_args().entries
  with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    cache = write_clusters(place / "cache")
    write_long_ledger(cache, place / "long", entries)
    out = place / "out"
    print(f"inspect: {cpu_seconds(f'inspect {cache.path}', out):.2f} s")
    train = f"train --epsilon 1 --delta 1e-5 --head lamb --out {out}"
    for command in ("budget", train):
      taken = [
        cpu_seconds(
          f"{command} --cache {cache.path} --ledger-dir {place / ledgers}", out
        )
        for ledgers in ("empty", "long")
      ]
      print(
        f"{command.split()[0]}: {taken[0]:.2f} s on an empty ledger,"
        f" {taken[1]:.2f} s on {entries:,} entries"
      )


if __name__ == "__main__":
  main()
