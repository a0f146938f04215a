"""Kills workers of a Flink cluster; extractions must end with the same bytes.

    python -m tests.cluster.kills --kills 10 --images 2000

A job runs over small shards. At a random moment a TaskManager that has work, as
Flink's REST interface says, gets SIGKILL, with its pool and the pool's workers,
and others are started in its place. Flink's log must show that it started the
job again; it ends, and the cache has the bytes of one that was made in a single
process, so that no row is lost or doubled. Then jobs are stopped: by Ctrl-C,
and by the loss of the job server; Flink must have none that runs soon after.
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

from tests.cluster.flink import (
  ONESHOT_DP,
  ROOT,
  CannotRun,
  FlinkCluster,
  fetch_jars,
  stop_when_told,
)
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


def make_job(place: pathlib.Path, images: int) -> list[str]:
  """Photographs in a folder; returns the words of the command."""
  write_folder(place / "photos", images, side=32)
  words = ["photos", "--shard-rows", str(SHARD_ROWS), "--batch-size", "10"]
  words += ["--stall-seconds", "120"]
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


def survive(cluster, place, words, number, moment, limit) -> str:
  """One job with a kill in it; returns how it went.

  `limit` is how many seconds a run may go on after the kill.
  """
  out = f"killed{number}"
  begin = time.monotonic()
  total = shards(place / "undisturbed")
  before = cluster.restarts()
  job = start(place, words, out, cluster.flags)
  wait_for(job, place / out, 1 + moment.randrange(total - 4))
  time.sleep(moment.uniform(0, 0.5))
  seen = shards(place / out)
  busy = cluster.busy()
  if not busy:
    sys.exit(f"{out}: no TaskManager is busy at {seen} of {total} shards.")
  victim = moment.choice(sorted(busy))
  cluster.kill_worker(victim)
  cluster.start_worker(victim)
  job.wait(limit)
  same(place, out, job)
  restarts = cluster.restarts() - before
  if not restarts:
    sys.exit(f"{out}: Flink's log shows no restart.")
  cluster.wait_for_workers()
  return (
    f"kill {number}: TaskManager {victim} of the busy {sorted(busy)} at {seen}"
    f" of {total} shards: {restarts} restart(s) in Flink's log, the same bytes"
    f" in one run, {time.monotonic() - begin:.0f} s"
  )


def stop(cluster, place, words, how: str, limit) -> str:
  """A job that is stopped; Flink soon has none, and it can go on."""
  out = how.replace(" ", "-")
  job = start(place, words, out, cluster.flags)
  wait_for(job, place / out, 2)
  if how == "Ctrl-C":
    job.send_signal(signal.SIGINT)
  else:
    cluster.kill("jobserver")
  begin = time.monotonic()
  job.wait(STOP_SECONDS + 30)
  ended = time.monotonic() - begin
  said = (place / f"{out}.log").read_text().splitlines()[-1]
  time.sleep(1)
  at_end = len(cluster.running())
  while cluster.running():
    if time.monotonic() - begin > STOP_SECONDS:
      sys.exit(f"{how}: Flink's job still runs after {STOP_SECONDS} s: {said}")
    time.sleep(0.2)
  gone = time.monotonic() - begin
  if at_end and "may still run" not in said:
    sys.exit(f"{how}: Flink's job still ran, and the command said: {said}")
  if how != "Ctrl-C":
    cluster.start_job_server()
  seen = shards(place / out)
  total = shards(place / "undisturbed")
  again = start(place, words, out, cluster.flags)
  again.wait(limit)
  same(place, out, again)
  return (
    f"{how}: status {job.returncode} after {ended:.1f} s, Flink had none after"
    f" {gone:.1f} s, {seen} of {total} shards there; run again, the same bytes."
    f"\n  {said}"
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--kills", type=int, default=2)
  parser.add_argument("--images", type=int, default=300)
  parser.add_argument("--seed", type=int, default=0)
  asked = parser.parse_args()
  try:
    fetch_jars()
  except CannotRun as reason:
    print(f"Flink is not tested: {reason}.")
    return
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
    with FlinkCluster(place / "cluster") as cluster:
      for number in range(asked.kills):
        told = survive(cluster, place, words, number, moment, limit)
        print(told, flush=True)
      for how in ("Ctrl-C", "job server lost"):
        print(stop(cluster, place, words, how, limit), flush=True)
  print(f"{asked.kills + 2} passed, 0 failed")


if __name__ == "__main__":
  main()
