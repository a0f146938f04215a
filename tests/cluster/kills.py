"""Kills workers of a Flink cluster; extractions must end with the same bytes.

    python -m tests.cluster.kills --kills 10 --images 2000

A job runs over small shards. At a random moment a TaskManager, its pool and the
pool's workers get SIGKILL, and others are started in their place. The job ends,
or ends when the same command is run again, and the cache has the bytes of one
that was made in a single process, so that no row is lost or doubled.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

from tests.cluster.flink import (
  ONESHOT_DP,
  ROOT,
  CannotRun,
  FlinkCluster,
  fetch_jars,
  stop_when_told,
)
from tests.extract.caches import digest
from tests.extract.image_jobs import write_folder

SHARED = ROOT.parent / "shared" / "data"
SHARD_ROWS = 20
TRIES = 3
START_SECONDS = 600
"""What a run may take with no image: JVMs start, a kill is noticed."""
IMAGE_SECONDS = 2
SLOWER = 10
"""A run on the cluster may take so many times what one beside it took."""
CONFIG = """
from oneshot_dp.configs.extract_config import *
def get_config():
  return ExtractConfig(
    source=ImageFolderSource(root="photos"),
    split="all",
    backbone=BackboneConfig(name={name!r}, weights={weights!r}),
    preprocess=PreprocessConfig(image_size={size}),
    batch_size=10,
    shard_rows={shard_rows},
    decode_threads=1,
    stall_seconds=120,
  )
"""


def make_job(place: pathlib.Path, images: int) -> str:
  """Photographs and a config, in a folder; returns what they are."""
  weights, photos = SHARED / "vit_ti16_in1k.npz", SHARED / "cifar10_images.npz"
  real = weights.is_file() and photos.is_file()
  name, size = ("vit_ti16", 224) if real else ("random_patches", 96)
  if real:
    with np.load(photos) as arrays:
      shown = arrays["train_image"][:images]
      labels = arrays["train_label"][:images]
    for i, (image, label) in enumerate(zip(shown, labels, strict=True)):
      file = place / "photos" / str(label) / f"{i:05d}.png"
      file.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(image).save(file)
  else:
    write_folder(place / "photos", images, side=32)
  (place / "job.py").write_text(
    CONFIG.format(
      name=name,
      weights=str(weights) if real else None,
      size=size,
      shard_rows=SHARD_ROWS,
    )
  )
  return f"{images} {'CIFAR-10' if real else 'made-up'} images through {name}"


def start(place: pathlib.Path, out: str, flags: list[str]) -> subprocess.Popen:
  with (place / f"{out}.log").open("ab") as log:
    return subprocess.Popen(
      [*ONESHOT_DP, "extract", "job.py", "--out", out, *flags],
      cwd=place,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
    )


def shards(out: pathlib.Path) -> int:
  return len(list(out.glob("*.array_record-*")))


def survive(
  cluster: FlinkCluster,
  place: pathlib.Path,
  number: int,
  moment: random.Random,
  limit: float,
) -> str:
  """One job with a kill in it; returns how it went.

  `limit` is how many seconds a run may go on after the kill.
  """
  out, begin = f"killed{number}", time.monotonic()
  total = shards(place / "undisturbed")
  job = start(place, out, cluster.flags)
  at = moment.randrange(total - 2)
  while shards(place / out) <= at and job.poll() is None:
    time.sleep(0.02)
  time.sleep(moment.uniform(0, 1))
  seen, running = shards(place / out), job.poll() is None
  victim = moment.randrange(2)
  cluster.kill_worker(victim)
  cluster.start_worker(victim)
  runs = 1
  while job.wait(limit) and runs < TRIES:
    cluster.wait_for_workers()
    job, runs = start(place, out, cluster.flags), runs + 1
  if job.returncode:
    sys.exit(f"{(place / f'{out}.log').read_text()}\nIt did not end well.")
  if digest(place / out) != digest(place / "undisturbed"):
    sys.exit(f"{place / out}: not the bytes of a local run.")
  cluster.wait_for_workers()
  return (
    f"kill {number}: TaskManager {victim} at {seen} of {total} shards"
    f"{'' if running else ' (the job had ended)'}: the same bytes after"
    f" {runs} run{'s' * (runs > 1)}, {time.monotonic() - begin:.0f} s"
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
    print(make_job(place, asked.images), flush=True)
    begin = time.monotonic()
    undisturbed = start(place, "undisturbed", [])
    if undisturbed.wait(START_SECONDS + IMAGE_SECONDS * asked.images):
      sys.exit((place / "undisturbed.log").read_text())
    took = time.monotonic() - begin
    print(f"undisturbed, in one process: {took:.0f} s", flush=True)
    limit = START_SECONDS + SLOWER * took
    moment = random.Random(asked.seed)
    with FlinkCluster(place / "cluster") as cluster:
      for number in range(asked.kills):
        print(survive(cluster, place, number, moment, limit), flush=True)
  print(f"{asked.kills} passed, 0 failed")


if __name__ == "__main__":
  main()
