"""Kills workers of Flink and Spark; extractions must end with the same bytes.

    python -m tests.cluster.kills --kills 10 --images 2000
    python -m tests.cluster.kills --runners FlinkRunner SparkRunner --store s3

A job runs over small shards. At a random moment a worker of the engine that has
work, as the engine's REST interface says, gets SIGKILL: a TaskManager of Flink,
or a Worker of Spark with its executor, and the pool beside it with the pool's
workers, and others are started in its place; or an executor alone. The engine's
log must show that it noticed; the job ends, and the cache has the bytes of one
that was made in a single process, so that no row is lost or doubled. Then jobs
are stopped: by Ctrl-C, and by the loss of the job server; the engine must have
none that runs soon after. Caches are in a folder, or in a bucket of a server of
S3 on the loopback, which Go builds and which has its objects in a folder.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.cluster.engine import EngineCluster
from tests.cluster.flink import FlinkCluster, FlinkRunnerCluster
from tests.cluster.processes import (
  ONESHOT_DP,
  ROOT,
  CannotRun,
  stop_when_told,
)
from tests.cluster.spark import SparkCluster
from tests.extract.cache.caches import digest
from tests.extract.job.jobs import write_folder
from tests.extract.object_server import BUCKET, real_s3

SHARED = ROOT.parent / "shared" / "data"
SHARD_ROWS = 20
START_SECONDS = 600
"""What a run may take with no image: JVMs start, a kill is noticed."""
IMAGE_SECONDS = 2
SLOWER = 10
"""A run on the cluster may take so many times what one beside it took."""
STOP_SECONDS = 60
CLUSTERS = {
  "PortableRunner": FlinkCluster,
  "FlinkRunner": FlinkRunnerCluster,
  "SparkRunner": SparkCluster,
}
STOPS = ("Ctrl-C", "job server lost")


@dataclasses.dataclass(frozen=True)
class Extraction:
  """A job that is run again and again, each time into another cache.

  Attributes:
    place: the folder of its images and of its logs.
    words: the words of the command, but for those of its output and engine.
    caches: the folder that has the caches, or the objects of their bucket.
    prefix: what a cache's name begins with in the command: "", or a bucket.
    commands: all that were started.
  """

  place: pathlib.Path
  words: list[str]
  caches: pathlib.Path
  prefix: str
  commands: list[subprocess.Popen] = dataclasses.field(default_factory=list)

  def start(self, out: str, flags: list[str]) -> subprocess.Popen:
    with (self.place / f"{out}.log").open("ab") as log:
      command = subprocess.Popen(
        [
          *(*ONESHOT_DP, "extract", *self.words),
          *("--out", f"{self.prefix}{out}", *flags),
        ],
        cwd=self.place,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
      )
    self.commands.append(command)
    return command

  def kill_commands(self) -> None:
    """SIGKILL to those that run; a job server ends with its command."""
    for command in self.commands:
      command.kill()
      command.wait()

  def log(self, out: str) -> str:
    return (self.place / f"{out}.log").read_text()

  def shards(self, out: str) -> int:
    return len(list((self.caches / out).glob("*.array_record-*")))

  def wait_for(self, job: subprocess.Popen, out: str, least: int) -> None:
    while self.shards(out) < least and job.poll() is None:
      time.sleep(0.02)
    if job.returncode:
      sys.exit(f"{self.log(out)}\nIt did not run.")

  def check_same(self, job: subprocess.Popen, out: str) -> None:
    """Ends the test if a job did not make the bytes of a local one."""
    if job.returncode:
      sys.exit(f"{self.log(out)}\nIt did not end well.")
    if digest(self.caches / out) != digest(self.caches / "undisturbed"):
      sys.exit(f"{self.caches / out}: not the bytes of a local run.")


def command_words(place: pathlib.Path, images: int) -> list[str]:
  """Writes photographs to a folder; returns the words of the command."""
  write_folder(place / "photos", images, side=32)
  words = ["photos", "--shard-rows", str(SHARD_ROWS), "--batch-size", "10"]
  words += ["--stall-seconds", "300"]
  if (weights := SHARED / "vit_ti16_in1k.npz").is_file():
    return [*words, "--backbone", "vit_ti16", "--weights", str(weights)]
  return [*words, "--backbone", "glyph_vit"]


@contextlib.contextmanager
def extraction(
  place: pathlib.Path, images: int, store: str
) -> Iterator[Extraction]:
  """The job, and the store of its caches while they are made."""
  words = command_words(place, images)
  if store == "folder":
    yield Extraction(place, words, caches=place, prefix="")
    return
  with real_s3(place):
    bucket = place / "objects" / BUCKET
    yield Extraction(place, words, caches=bucket, prefix=f"s3://{BUCKET}/")


def wait_until_busy(cluster: EngineCluster, job: subprocess.Popen) -> None:
  """Waits for the first task, so that later questions are answered at once."""
  while job.poll() is None:
    # Nobody answers before the job is there, and Spark's page is slow at first.
    with contextlib.suppress(OSError, ValueError):
      if cluster.busy():
        return
    time.sleep(1)


def survive(
  cluster: EngineCluster,
  extraction: Extraction,
  number: int,
  moment: random.Random,
  limit: float,
) -> str:
  """One job with a kill in it; returns how it went.

  `limit` is how many seconds a run may go on after the kill.
  """
  out = f"{type(cluster).__name__}-killed{number}"
  kind = cluster.VICTIMS[number % len(cluster.VICTIMS)]
  begin = time.monotonic()
  total = extraction.shards("undisturbed")
  before = cluster.losses()
  job = extraction.start(out, cluster.flags)
  wait_until_busy(cluster, job)
  extraction.wait_for(job, out, 1 + moment.randrange(total - 4))
  time.sleep(moment.uniform(0, 0.5))
  busy = cluster.busy()
  seen = extraction.shards(out)
  if not busy:
    sys.exit(f"{out}: no worker is busy at {seen} of {total} shards.")
  victim = moment.choice(sorted(busy))
  cluster.replace(kind, victim)
  job.wait(limit)
  extraction.check_same(job, out)
  losses = cluster.losses() - before
  if not losses:
    sys.exit(f"{out}: the engine's log shows no loss.")
  cluster.wait_for_workers()
  return (
    f"kill {number}: {kind} {victim} of the busy {sorted(busy)} at {seen} of"
    f" {total} shards: {losses} loss(es) in the engine's log, the same bytes in"
    f" one run, {time.monotonic() - begin:.0f} s"
  )


def stop(
  cluster: EngineCluster, extraction: Extraction, how: str, limit: float
) -> str:
  """A job that is stopped; the engine soon has none, and it can go on."""
  out = f"{type(cluster).__name__}-{how.replace(' ', '-')}"
  job = extraction.start(out, cluster.flags)
  extraction.wait_for(job, out, 2)
  if how == "Ctrl-C":
    job.send_signal(signal.SIGINT)
  else:
    cluster.kill_job_server()
  begin = time.monotonic()
  job.wait(STOP_SECONDS + 30)
  ended = time.monotonic() - begin
  said = extraction.log(out).splitlines()[-1]
  time.sleep(1)
  at_end = len(cluster.running())
  while cluster.running():
    if time.monotonic() - begin > STOP_SECONDS:
      sys.exit(f"{how}: the job still runs after {STOP_SECONDS} s: {said}")
    time.sleep(0.2)
  gone = time.monotonic() - begin
  if at_end and "may still run" not in said:
    sys.exit(f"{how}: the job still ran, and the command said: {said}")
  if how != "Ctrl-C":
    cluster.start_job_server()
  seen = extraction.shards(out)
  total = extraction.shards("undisturbed")
  again = extraction.start(out, cluster.flags)
  again.wait(limit)
  extraction.check_same(again, out)
  return (
    f"{how}: status {job.returncode} after {ended:.1f} s, the engine had none"
    f" after {gone:.1f} s, {seen} of {total} shards there; run again, the same"
    " bytes."
    f"\n  {said}"
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--kills", type=int, default=2)
  parser.add_argument("--images", type=int, default=300)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--stops", nargs="*", choices=STOPS, default=STOPS)
  parser.add_argument("--store", choices=("folder", "s3"), default="folder")
  parser.add_argument(
    "--runners", nargs="+", choices=CLUSTERS, default=["PortableRunner"]
  )
  asked = parser.parse_args()
  stop_when_told()
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    os.chdir(place)  # What is relative is so to the workers too.
    # What killed commands and workers leave goes with the folder.
    os.environ["TMPDIR"] = folder
    try:
      with extraction(place, asked.images, asked.store) as job:
        try:
          run_all(job, asked)
        finally:
          job.kill_commands()
    except pytest.skip.Exception as reason:
      print(f"Nothing is tested onto {asked.store}: {reason}", flush=True)


def run_all(extraction: Extraction, asked: argparse.Namespace) -> None:
  """The job without an engine, and then on clusters that are disturbed."""
  begin = time.monotonic()
  undisturbed = extraction.start("undisturbed", [])
  if undisturbed.wait(START_SECONDS + IMAGE_SECONDS * asked.images):
    sys.exit(extraction.log("undisturbed"))
  took = time.monotonic() - begin
  print(f"undisturbed, in one process: {took:.0f} s", flush=True)
  limit = START_SECONDS + SLOWER * took
  moment = random.Random(asked.seed)
  for runner in asked.runners:
    try:
      with CLUSTERS[runner](extraction.place / runner) as cluster:
        for number in range(asked.kills):
          told = survive(cluster, extraction, number, moment, limit)
          print(f"{runner}, {told}", flush=True)
        for how in asked.stops:
          told = stop(cluster, extraction, how, limit)
          print(f"{runner}, {told}", flush=True)
      passed = asked.kills + len(asked.stops)
      print(f"{runner}: {passed} passed, 0 failed", flush=True)
    except CannotRun as reason:
      print(f"{runner} is not tested: {reason}.", flush=True)


if __name__ == "__main__":
  main()
