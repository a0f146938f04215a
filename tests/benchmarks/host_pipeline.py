"""Decoding, resizing and cropping on the host against Pillow alone in a loop.

    python tests/benchmarks/host_pipeline.py

The images are 500 x 375 JPEGs made of scikit-learn's two photographs. Prints
images/s per core of (a) Pillow alone: open, convert, resize the shorter side
to 256, crop 224, in a loop on one thread, and (b) the job's host pipeline, all
threads, in front of a backbone that does next to nothing; in turns, in one
run, by wall time and by CPU time, and their ratio.

"""

import argparse
import io
import os
import statistics
import time

import jax
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from oneshot_dp.configs.extract_config import ArraysSource, ExtractConfig
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.images.preprocess import Preprocessing
from oneshot_dp.extract.job.embed_range import decode_pool, embed_range
from oneshot_dp.extract.job.embedder import Embedder
from oneshot_dp.extract.sources.example import Example

_PREPROCESSING = Preprocessing(image_size=224, resize=256)


class Jpegs:
  """A source of JPEGs that are in memory already."""

  name: str = "jpegs"
  version: str = ""
  class_names: tuple[str, ...] = ("any",)
  privacy_unit: str = "example"
  id_source: str = "position"
  listing = b""

  def __init__(self, jpegs: list[bytes], length: int):
    self._jpegs, self._length = jpegs, length

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, index: int) -> Example:
    image = self._jpegs[index % len(self._jpegs)]
    return Example(example_id=index, label=0, image=image)

  def where(self, index: int) -> str:
    return f"jpegs[{index}]"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--images", type=int, default=1500)
  parser.add_argument("--repeats", type=int, default=5)
  args = parser.parse_args()
  jpegs, cores = make_jpegs(), os.cpu_count() or 1
  print(
    f"n = {args.images:,} JPEGs of 500 x 375 px,"
    f" {np.mean([len(j) for j in jpegs]) / 1e3:.0f} kB each, to 224 px; {cores}"
    f" cores, {jax.devices()[0].platform}"
  )
  config = ExtractConfig(source=ArraysSource(path="-"), batch_size=64)
  embedder = Embedder(first_pixel(), config.batch_size)
  ratios = []
  for _ in range(args.repeats):
    alone = timed(lambda: pillow_alone(jpegs, args.images))
    ours = timed(lambda: pipeline(jpegs, args.images, embedder, config))
    wall, cpu = alone[0] / (ours[0] * cores), alone[1] / ours[1]
    ratios.append((wall, cpu))
    print(
      f"Pillow alone {args.images / alone[0]:.0f} images/s"
      f" ({1e3 * alone[1] / args.images:.2f} ms of CPU each); pipeline"
      f" {args.images / ours[0] / cores:.0f} images/s per core"
      f" ({1e3 * ours[1] / args.images:.2f} ms); ratio {wall:.2f},"
      f" by CPU time {cpu:.2f}"
    )
  wall, cpu = (
    statistics.median(column) for column in zip(*ratios, strict=True)
  )
  print(f"median ratio {wall:.2f}, by CPU time {cpu:.2f}")


def make_jpegs() -> list[bytes]:
  """Crops of photographs, each its own."""
  rng, jpegs = np.random.default_rng(0), []
  for _ in range(20):
    for image in load_sample_images().images:
      top, left = rng.integers(0, 53), rng.integers(0, 141)
      file = io.BytesIO()
      crop = Image.fromarray(image[top : top + 375, left : left + 500])
      crop.save(file, "JPEG", quality=90)
      jpegs.append(file.getvalue())
  return jpegs


def pillow_alone(jpegs: list[bytes], images: int) -> None:
  for i in range(images):
    image = Image.open(io.BytesIO(jpegs[i % len(jpegs)])).convert("RGB")
    scale = 256 / min(image.size)
    full = round(image.width * scale), round(image.height * scale)
    left, top = (full[0] - 224) // 2, (full[1] - 224) // 2
    resized = image.resize(full, Image.Resampling.BICUBIC)
    np.asarray(resized.crop((left, top, left + 224, top + 224)))


def pipeline(
  jpegs: list[bytes], images: int, embedder: Embedder, config: ExtractConfig
) -> None:
  with decode_pool(config) as pool:
    source = Jpegs(jpegs, images)
    for _ in embed_range(source, range(images), embedder, config, pool):
      pass


def first_pixel() -> Backbone:
  return Backbone(
    name="first_pixel",
    embedding="-",
    feature_dim=3,
    preprocessing=_PREPROCESSING,
    weights_sha256=None,
    compute_dtype="float32",
    params={},
    apply=lambda params, images: images[:, 0, 0].astype(np.float32),
  )


def timed(run: object) -> tuple[float, float]:
  """Wall and CPU seconds."""
  assert callable(run)
  start, cpu = time.perf_counter(), time.process_time()
  run()
  return time.perf_counter() - start, time.process_time() - cpu


if __name__ == "__main__":
  main()
