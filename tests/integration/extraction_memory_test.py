"""An extraction takes as much memory for many images as for few."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

FEW, MANY, SIDE = 300, 1_300, 256

RUN = """
import pathlib, resource, sys
from oneshot_dp.configs.extract_config import *
from oneshot_dp.extract.job.job import run_extraction
job = ExtractConfig(
  source=ImageFolderSource(root=sys.argv[1]),
  split="all",
  backbone=BackboneConfig(name="random_patches"),
  preprocess=PreprocessConfig(image_size=16),
  batch_size=16,
)
report = run_extraction(job, pathlib.Path(sys.argv[2]))
print(report.cache.info.num_examples)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def photographs(root: pathlib.Path, count: int) -> pathlib.Path:
  """One image, 196 kB once decoded, under many names."""
  (root / "cat").mkdir(parents=True)
  first = root / "cat" / "0.png"
  Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(first)
  for i in range(1, count):
    (root / "cat" / f"{i}.png").hardlink_to(first)
  return root


def peak_kilobytes(tmp_path: pathlib.Path, count: int) -> int:
  root = photographs(tmp_path / f"photos{count}", count)
  result = subprocess.run(
    [sys.executable, "-c", RUN, str(root), str(tmp_path / f"cache{count}")],
    env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    capture_output=True,
    text=True,
    check=True,
    timeout=300,
  )
  examples, peak = map(int, result.stdout.split())
  assert examples == count
  return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
  few, many = peak_kilobytes(tmp_path, FEW), peak_kilobytes(tmp_path, MANY)
  # Kept, the other 1,000 images would be 197 MB; their names are 0.2 MB.
  assert many - few < 100_000
