"""How long a person waits for --help and for the line about a typing error.

    python tests/benchmarks/start_time.py

Prints the fastest and the slowest of several runs, each in a process of its
own; tests/pipeline/commands/help_test forbids what is slow to import.
"""

import subprocess
import sys
import time

RUNS = 5
COMMANDS = (
  ["--help"],
  ["sweep", "--help"],
  ["extract", "cifar10_vit_ti16", "--help"],
  ["train", "--epsilno", "1"],
)


def seconds(words: list[str]) -> float:
  start = time.perf_counter()
  argv = [sys.executable, "-m", "oneshot_dp.pipeline.cli", *words]
  subprocess.run(argv, capture_output=True, check=False)
  return time.perf_counter() - start


def main() -> None:
  for words in COMMANDS:
    taken = [seconds(words) for _ in range(RUNS)]
    name = " ".join(words)
    print(f"{name:<32}  {min(taken):.2f} to {max(taken):.2f} s")


if __name__ == "__main__":
  main()
