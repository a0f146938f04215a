"""What an extraction costs its launcher, by the number of rows and of shards.

    python tests/benchmarks/scale.py --rows 128000 1281167

Runs the whole path with images of one pixel and a backbone of no work, and the
launcher's own parts alone; each in a process of its own, whose memory is the
growth of its peak without pages of files. Seconds are of all cores and, in
brackets, of the clock. extract/SCALE.md has the figures, and what follows.
"""

import argparse
import multiprocessing
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np

BACKBONE = """
def embed(params, images):
  return images.reshape(len(images), -1)[:, :3].astype("float32") + 1
"""


def source_listing(rows: int, place: pathlib.Path) -> None:
  """Lists a folder of so many files, keeps that, and opens it as workers do."""
  from oneshot_dp.configs.extract_config import ImageFolderSource
  from oneshot_dp.extract.job.listing import _keep, _kept
  from oneshot_dp.extract.sources.file_list import FileList
  from oneshot_dp.extract.sources.open_source import open_source
  from oneshot_dp.extract.storage.store import store_at

  (place / "class_0").mkdir()
  names = [f"class_{i:03d}" for i in range(1000)]
  images = (
    (f"{names[i * 1000 // rows]}/image_{i:012d}.jpg", 110_000)
    for i in range(rows)
  )
  listing = FileList.of(images).after(names)
  job, store = ImageFolderSource(root=str(place)), store_at(place / "cache")
  assert len(open_source(job, "all", listing)) == rows
  _keep(store, listing)
  del listing
  kept = _kept(store)
  assert kept
  assert len(open_source(job, "all", kept[1])) == rows


def progress_poll(rows: int, place: pathlib.Path) -> None:
  """Looks once at which shards are there."""
  from oneshot_dp.extract.job.job import _there

  assert len(_there(place, _identity(rows))) == _identity(rows).num_shards


def distinct_ids(rows: int, place: pathlib.Path) -> None:
  """Looks for an id that two rows have."""
  from oneshot_dp.extract.storage.scratch import Repeated

  del place
  with Repeated(rows) as ids:
    for i in range(0, rows, 256):
      ids.add(np.arange(i, min(i + 256, rows))[::-1])
    assert not len(ids.found())


def whole_path(rows: int, place: pathlib.Path) -> None:
  """Extracts: decode, embed, write, compare, finish."""
  from oneshot_dp.configs.extract_config import (
    ArraysSource,
    BackboneConfig,
    ExtractConfig,
    PreprocessConfig,
  )
  from oneshot_dp.extract.job.job import run_extraction

  image = np.random.default_rng(0).integers(0, 256, (rows, 1, 1, 3), np.uint8)
  np.savez(
    place / "images.npz",
    image=image,
    label=np.zeros(rows, np.int64),
    example_id=np.arange(rows)[::-1],
    class_names=np.array(["a", "b"]),
  )
  (place / "none.py").write_text(BACKBONE)
  job = ExtractConfig(
    source=ArraysSource(path=str(place / "images.npz")),
    backbone=BackboneConfig(name=f"{place / 'none.py'}:embed"),
    preprocess=PreprocessConfig(image_size=1),
    batch_size=256,
    decode_threads=2,
  )
  assert len(run_extraction(job, place / "cache").cache) == rows


def _identity(rows: int):
  from oneshot_dp.extract.cache.identity import BackboneIdentity, CacheIdentity

  return CacheIdentity(
    dataset="made_up",
    split="train",
    source_num_examples=rows,
    feature_dim=1280,
    class_names=("a", "b"),
    num_classes_source="flag",
    backbone=BackboneIdentity(name="none"),
    embedding_dtype="float16",
  )


def _empty_shards(rows: int, place: pathlib.Path) -> None:
  identity = _identity(rows)
  for i in range(identity.num_shards):
    (place / identity.shard_name(i)).touch()


def measured(
  part: Callable[[int, pathlib.Path], None], rows: int
) -> tuple[float, float, float]:
  """CPU seconds, seconds and megabytes of a part in a process of its own."""

  def run(pipe) -> None:
    import oneshot_dp.extract.job.job  # noqa: F401 (its memory is not the part's)

    with tempfile.TemporaryDirectory() as folder:
      place = pathlib.Path(folder)
      if part is progress_poll:
        _empty_shards(rows, place)
      peak = before = _anonymous()
      stop = threading.Event()

      def look() -> None:
        nonlocal peak
        while not stop.wait(0.05):
          peak = max(peak, _anonymous())

      threading.Thread(target=look, daemon=True).start()
      start, cpu = time.perf_counter(), time.process_time()
      part(rows, place)
      took = time.process_time() - cpu, time.perf_counter() - start
      peak = max(peak, _anonymous())
      stop.set()
    pipe.send((*took, (peak - before) / 1024))

  ours, theirs = multiprocessing.Pipe()
  process = multiprocessing.get_context("fork").Process(
    target=run, args=(theirs,)
  )
  process.start()
  theirs.close()
  result = ours.recv()
  process.join()
  return result


def _anonymous() -> int:
  """Kilobytes of this process that no file holds."""
  for line in pathlib.Path("/proc/self/status").read_text().splitlines():
    if line.startswith("RssAnon"):
      return int(line.split()[1])
  raise NotImplementedError("Linux alone says it.")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--rows", type=int, nargs="+", default=[128_000])
  parser.add_argument("--parts", nargs="+", default=list(PARTS))
  asked = parser.parse_args()
  for name in asked.parts:
    for rows in asked.rows:
      cpu, seconds, megabytes = measured(PARTS[name], rows)
      print(
        f"{name:15} {rows:12,} rows {cpu:9.2f} s ({seconds:.2f} s)"
        f" {megabytes:9.1f} MB {1e6 * cpu / rows:8.2f} us/row"
        f" {1e6 * megabytes / rows:7.1f} B/row",
        flush=True,
      )


PARTS = {
  part.__name__: part
  for part in (source_listing, progress_poll, distinct_ids, whole_path)
}

if __name__ == "__main__":
  main()
