"""An extraction takes as much memory for many images as for few."""

import os
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
for count in sys.argv[1:]:
  job = ExtractConfig(
    source=ImageFolderSource(root=f"photos{count}"),
    split="all",
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=16),
    batch_size=16,
  )
  report = run_extraction(job, pathlib.Path(f"cache{count}"))
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  print(report.cache.info.num_examples, peak)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
  for count in (FEW, MANY):
    # One image, 196 kB once decoded, under many names.
    (tmp_path / f"photos{count}/cat").mkdir(parents=True)
    first = tmp_path / f"photos{count}/cat/0.png"
    Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(first)
    for i in range(1, count):
      first.with_name(f"{i}.png").hardlink_to(first)
  result = subprocess.run(
    [sys.executable, "-c", RUN, str(FEW), str(MANY)],
    cwd=tmp_path,
    env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    capture_output=True,
    text=True,
    check=True,
    timeout=300,
  )
  few, many = (line.split() for line in result.stdout.splitlines())
  assert (int(few[0]), int(many[0])) == (FEW, MANY)
  # Kept, the other 1,000 images would be 197 MB; their names are 0.2 MB.
  assert int(many[1]) - int(few[1]) < 100_000
