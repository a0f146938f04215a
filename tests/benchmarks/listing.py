"""What it takes to list very many images, and to hand the list to workers.

    python -m tests.benchmarks.listing 5000000
    python -m tests.benchmarks.listing 5000000 --store disk s3

Makes so many empty files in 1,000 classes (a listing reads no image, only sizes
and times), and does in a process of its own all that the launcher of a job on
an engine does before the first worker begins, the puts of the pieces included:
to a folder, or to an S3 server on the loopback, which Go builds. It prints the
processor time of that process and its memory at the most, by steps, and what a
worker does to begin. The files take an inode each, and go at the end.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator

from tests.extract.object_server import BUCKET, real_s3

CLASSES = 1_000


def make_files(folder: pathlib.Path, n: int) -> None:
  """n empty files, named as those of ImageNet are."""
  for number in range(CLASSES):
    name = f"n{number * 7919 + 1_440_764:08}"
    place = folder / name
    place.mkdir(parents=True)
    for image in range(n * number // CLASSES, n * (number + 1) // CLASSES):
      path = f"{place}/{name}_{image}.JPEG"
      os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL))


class Steps:
  """Prints the processor time of each step, and the memory at the most."""

  def __init__(self) -> None:
    self._cpu = time.process_time()
    self._clock = time.monotonic()

  def ended(self, step: str) -> None:
    cpu = time.process_time()
    clock = time.monotonic()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
      f"{step:28} {cpu - self._cpu:7.1f} s CPU {clock - self._clock:7.1f} s;"
      f" {memory / 1e9:.2f} GB at the most, {cpu:.1f} s CPU in all",
      flush=True,
    )
    self._cpu = cpu
    self._clock = clock


def launch(folder: str, out: str) -> None:
  """What `run_extraction` does until a job is handed to an engine."""
  steps = Steps()
  from oneshot_dp.configs.extract_config import ExtractConfig, SourceConfig
  from oneshot_dp.extract import storage
  from oneshot_dp.extract.cache.shard_file import CacheJob
  from oneshot_dp.extract.cache.write import start_or_resume
  from oneshot_dp.extract.job import beam_options, worker
  from oneshot_dp.extract.job.job import absolute_job, cache_info
  from oneshot_dp.extract.job.listing import listing_digest
  from oneshot_dp.extract.job.shard import Job, load_embedder
  from oneshot_dp.extract.sources.open_source import open_source

  config = ExtractConfig(
    source=SourceConfig(location=(folder,)), backbone="glyph_vit"
  )
  beam_options.pipeline_options(["--runner=PrismRunner"])
  embedder = load_embedder(config)
  steps.ended("Python, JAX, Beam, backbone")
  source = open_source(config.source)
  steps.ended(f"listing of {len(source):,}")
  info = cache_info(config, source, embedder.backbone)
  cache = CacheJob(info=info, extra_identity=listing_digest(source))
  steps.ended("digest")
  start_or_resume(out, cache)
  run = worker.launch(absolute_job(Job(out, config, cache, source, embedder)))
  steps.ended("pieces, put")
  sizes = storage.list_files(storage.store_at(out))
  pieces = [size for name, (size, _) in sizes.items() if "listing" in name]
  launch_file, _ = sizes[f"job.launch.{run}"]
  print(
    f"{len(pieces)} pieces of {sum(pieces) / 1e6:.0f} MB in all; launch file"
    f" of {launch_file / 1e3:.0f} kB"
  )


def begin(out: str) -> None:
  """What a worker does until it reads the first image."""
  from oneshot_dp.extract import storage
  from oneshot_dp.extract.job import worker

  (name,) = (
    name
    for name in storage.list_files(storage.store_at(out))
    if name.startswith("job.launch.")
  )
  steps = Steps()
  job = worker.load_job(out, name.removeprefix("job.launch."))
  assert job.read_part is not None
  part = job.read_part(job.cache.info.num_shards // 2)
  steps.ended(f"a worker's start, {len(part):,} images")


@contextlib.contextmanager
def output(store: str, place: pathlib.Path) -> Iterator[str]:
  """Where the job's files go: a folder, or a bucket of a server here."""
  if store == "disk":
    yield str(place / "out")
    return
  with real_s3(place):
    yield f"s3://{BUCKET}/out"


def run_alone(function, *words: str) -> None:
  """Calls a function in a process that has done nothing else."""
  process = multiprocessing.get_context("spawn").Process(
    target=function, args=words
  )
  process.start()
  process.join()
  if process.exitcode:
    raise SystemExit(process.exitcode)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("images", type=int)
  parser.add_argument("--store", nargs="+", default=["disk"])
  asked = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    make_files(place / "images", asked.images)
    for store in asked.store:
      (place / store).mkdir()
      print(f"to {store}:", flush=True)
      with output(store, place / store) as out:
        run_alone(launch, str(place / "images"), out)
        run_alone(begin, out)
      shutil.rmtree(place / store)


if __name__ == "__main__":
  main()
