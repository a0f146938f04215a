"""Runners that start their own job server: what they make, and what they leave.

    python -m tests.cluster.job_servers

The job server of each runner is fetched by its own client: Go builds Prism, and
Maven has the jars of Flink and Spark, which run in the job server itself. A job
is run to its end and must make the bytes of a loop; others are stopped by
Ctrl-C, SIGTERM and SIGKILL, and no server may be left behind. What is not
installed is not tested, and said to be.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tests.cluster.flink import FLINK
from tests.cluster.processes import ONESHOT_DP, ROOT, CannotRun, servers_of
from tests.cluster.spark import SPARK
from tests.extract.cache.caches import digest
from tests.extract.job.jobs import write_folder

SERVERS = ROOT / "build" / "job_servers"
IMAGES = 120
JOB_SECONDS = 300
END_SECONDS = 60


def prism() -> tuple[pathlib.Path, list[str]]:
  """Builds Prism; returns its path, and the flags of its runner."""
  import apache_beam

  if shutil.which("go") is None:
    raise CannotRun("there is no go here")
  path = SERVERS / "prism"
  if not path.exists():
    command = "github.com/apache/beam/sdks/v2/go/cmd/prism"
    built = subprocess.run(
      ["go", "install", f"{command}@v{apache_beam.__version__}"],
      env=os.environ | {"GOBIN": str(SERVERS)},
      capture_output=True,
      text=True,
    )
    if built.returncode:
      raise CannotRun(f"Go cannot build Prism: {built.stderr[-200:]}")
  return path, ["--runner=PrismRunner", f"--prism_location={path}"]


def flink_runner() -> tuple[pathlib.Path, list[str]]:
  path = FLINK.job_server_jar
  return path, ["--runner=FlinkRunner", f"--flink_job_server_jar={path}"]


def spark_runner() -> tuple[pathlib.Path, list[str]]:
  path = SPARK.job_server_jar
  return path, ["--runner=SparkRunner", f"--spark_job_server_jar={path}"]


RUNNERS = {"Prism": prism, "Flink": flink_runner, "Spark": spark_runner}


def start(place: pathlib.Path, out: str, flags: list[str]) -> subprocess.Popen:
  words = ["photos", "--backbone", "glyph_vit", "--shard-rows", "10"]
  words += ["--batch-size", "10", "--out", out]
  with (place / f"{out}.log").open("ab") as log:
    return subprocess.Popen(
      [*ONESHOT_DP, "extract", *words, *flags],
      cwd=place,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
    )


def check_gone(path: pathlib.Path, what: str) -> None:
  deadline = time.monotonic() + END_SECONDS
  while left := servers_of(path):
    if time.monotonic() > deadline:
      sys.exit(f"{what}: the job server is left behind: {left}")
    time.sleep(0.2)


def check_runner(place: pathlib.Path, name: str) -> str:
  path, flags = RUNNERS[name]()
  begin = time.monotonic()
  job = start(place, name, flags)
  if job.wait(JOB_SECONDS):
    sys.exit(f"{(place / f'{name}.log').read_text()}\n{name} did not run.")
  if digest(place / name) != digest(place / "loop"):
    sys.exit(f"{name}: not the bytes of a loop.")
  took = time.monotonic() - begin
  check_gone(path, f"{name}, run to its end")
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
    out = f"{name}-{number.name}"
    job = start(place, out, flags)
    deadline = time.monotonic() + JOB_SECONDS
    while not servers_of(path) and time.monotonic() < deadline:
      time.sleep(0.05)
    time.sleep(1)
    job.send_signal(number)
    job.wait(JOB_SECONDS)
    check_gone(path, f"{name}, {number.name}")
  return (
    f"{name}: the bytes of a loop in {took:.0f} s; no server is left after the"
    " end, Ctrl-C, SIGTERM and SIGKILL"
  )


def main() -> None:
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    write_folder(place / "photos", IMAGES, side=32)
    if start(place, "loop", []).wait(JOB_SECONDS):
      sys.exit((place / "loop.log").read_text())
    for name in sys.argv[1:] or RUNNERS:
      try:
        print(check_runner(place, name), flush=True)
      except CannotRun as reason:
        print(f"{name} is not tested: {reason}.", flush=True)


if __name__ == "__main__":
  main()
