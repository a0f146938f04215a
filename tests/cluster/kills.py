"""Kills workers of Flink and Spark; extractions must end with the same bytes.

    python -m tests.cluster.kills --kills 10 --images 2000
    python -m tests.cluster.kills --runners FlinkRunner SparkRunner

A job runs over small shards. At a random moment a worker of the engine that has
work, as the engine's REST interface says, gets SIGKILL: a TaskManager of Flink,
or a Worker of Spark with its executor, and the pool beside it with the pool's
workers, and others are started in its place; or an executor alone. The engine's
log must show that it noticed; the job ends, and the cache has the bytes of one
that was made in a single process, so that no row is lost or doubled. Then jobs
are stopped: by Ctrl-C, and by the loss of the job server; the engine must have
none that runs soon after.
"""

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

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
Cluster = FlinkCluster | SparkCluster


def make_job(place: pathlib.Path, images: int) -> list[str]:
  """Photographs in a folder; returns the words of the command."""
  write_folder(place / "photos", images, side=32)
  words = ["photos", "--shard-rows", str(SHARD_ROWS), "--batch-size", "10"]
  words += ["--stall-seconds", "300"]
  if (weights := SHARED / "vit_ti16_in1k.npz").is_file():
    return [*words, "--backbone", "vit_ti16", "--weights", str(weights)]
  return [*words, "--backbone", "glyph_vit"]


def start(
  place: pathlib.Path, words: list[str], out: str, flags: list[str]
) -> subprocess.Popen:
  with (place / f"{out}.log").open("ab") as log:
    return subprocess.Popen(
      [*ONESHOT_DP, "extract", *words, "--out", out, *flags],
      cwd=place,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
    )


def shards(out: pathlib.Path) -> int:
  return len(list(out.glob("*.array_record-*")))


def wait_for(job: subprocess.Popen, out: pathlib.Path, least: int) -> None:
  while shards(out) < least and job.poll() is None:
    time.sleep(0.02)
  if job.returncode:
    sys.exit(f"{out.with_suffix('.log').read_text()}\nIt did not run.")


def same(place: pathlib.Path, out: str, job: subprocess.Popen) -> None:
  if job.returncode:
    sys.exit(f"{(place / f'{out}.log').read_text()}\nIt did not end well.")
  if digest(place / out) != digest(place / "undisturbed"):
    sys.exit(f"{place / out}: not the bytes of a local run.")


def survive(
  cluster: Cluster,
  place: pathlib.Path,
  words: list[str],
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
  total = shards(place / "undisturbed")
  before = cluster.losses()
  job = start(place, words, out, cluster.flags)
  wait_for(job, place / out, 1 + moment.randrange(total - 4))
  time.sleep(moment.uniform(0, 0.5))
  seen = shards(place / out)
  busy = cluster.busy()
  if not busy:
    sys.exit(f"{out}: no worker is busy at {seen} of {total} shards.")
  victim = moment.choice(sorted(busy))
  cluster.replace(kind, victim)
  job.wait(limit)
  same(place, out, job)
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
  cluster: Cluster,
  place: pathlib.Path,
  words: list[str],
  how: str,
  limit: float,
) -> str:
  """A job that is stopped; the engine soon has none, and it can go on."""
  out = f"{type(cluster).__name__}-{how.replace(' ', '-')}"
  job = start(place, words, out, cluster.flags)
  wait_for(job, place / out, 2)
  if how == "Ctrl-C":
    job.send_signal(signal.SIGINT)
  else:
    cluster.kill_job_server()
  begin = time.monotonic()
  job.wait(STOP_SECONDS + 30)
  ended = time.monotonic() - begin
  said = (place / f"{out}.log").read_text().splitlines()[-1]
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
  seen = shards(place / out)
  total = shards(place / "undisturbed")
  again = start(place, words, out, cluster.flags)
  again.wait(limit)
  same(place, out, again)
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
  parser.add_argument(
    "--runners", nargs="+", choices=CLUSTERS, default=["PortableRunner"]
  )
  asked = parser.parse_args()
  stop_when_told()
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    os.chdir(place)  # What is relative is so to the workers too.
    words = make_job(place, asked.images)
    begin = time.monotonic()
    undisturbed = start(place, words, "undisturbed", [])
    if undisturbed.wait(START_SECONDS + IMAGE_SECONDS * asked.images):
      sys.exit((place / "undisturbed.log").read_text())
    took = time.monotonic() - begin
    print(f"undisturbed, in one process: {took:.0f} s", flush=True)
    limit = START_SECONDS + SLOWER * took
    moment = random.Random(asked.seed)
    for runner in asked.runners:
      try:
        check(runner, place, words, asked.kills, moment, limit)
      except CannotRun as reason:
        print(f"{runner} is not tested: {reason}.", flush=True)


def check(
  runner: str,
  place: pathlib.Path,
  words: list[str],
  kills: int,
  moment: random.Random,
  limit: float,
) -> None:
  """All jobs of a runner, on a cluster of its own."""
  with CLUSTERS[runner](place / runner) as cluster:
    for number in range(kills):
      told = survive(cluster, place, words, number, moment, limit)
      print(f"{runner}, {told}", flush=True)
    for how in ("Ctrl-C", "job server lost"):
      told = stop(cluster, place, words, how, limit)
      print(f"{runner}, {told}", flush=True)
  print(f"{runner}: {kills + 2} passed, 0 failed", flush=True)


if __name__ == "__main__":
  main()
