"""An extraction that is stopped, in a process of its own, and run again."""

import contextlib
import io
import os
import pathlib
import random
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest
from apache_beam.runners.worker.worker_pool_main import (
  BeamFnExternalWorkerPoolServicer,
)

from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.pipeline.cli import main
from tests.extract.caches import digest
from tests.extract.image_jobs import write_folder
from tests.pipeline.command_line import Copy

IMAGES, SHARD_ROWS = 600, 30
PROCESSES = "--direct_running_mode=multi_processing", "--direct_num_workers=2"

CONFIG = f"""
from oneshot_dp.configs.extract_config import *
def get_config():
  return ExtractConfig(
    source=ImageFolderSource(root="photos"),
    split="all",
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=96),
    batch_size=16,
    shard_rows={SHARD_ROWS},
  )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
  """Images, a config, and what an undisturbed run makes of them."""
  place = tmp_path_factory.mktemp("job")
  write_folder(place / "photos", IMAGES, side=24)
  (place / "job.py").write_text(CONFIG)
  assert f"{IMAGES} images in" in finished(place, place / "undisturbed")
  return place


def finished(place: pathlib.Path, out: pathlib.Path, *flags: str) -> str:
  """What a run to the end prints, in this process."""
  with (
    contextlib.chdir(place),
    contextlib.redirect_stdout(io.StringIO()) as said,
  ):
    assert main(["extract", "job.py", "--out", str(out), *flags]) == 0
  return said.getvalue()


def extraction(place: pathlib.Path, out: pathlib.Path, *flags: str) -> Copy:
  return Copy(["extract", "job.py", "--out", out, *flags], cwd=place)


def shards(out: pathlib.Path) -> int:
  return len(list(out.glob("*.array_record-*")))


def wait_for_shards(process: Copy, out: pathlib.Path, least: int) -> None:
  while shards(out) < least and process.poll() is None:
    time.sleep(0.01)


@pytest.mark.slow
def test_killed_twice_it_makes_the_same_bytes(folder, tmp_path):
  out = tmp_path / "cache"
  moments = random.Random(0)
  for _ in range(2):
    process = extraction(folder, out)
    wait_for_shards(process, out, shards(out) + moments.randint(1, 4))
    time.sleep(moments.uniform(0, 0.05))
    assert process.poll() is None, "finished before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not (out / "cache_info.json").exists()
  done = shards(out)
  assert done >= 2

  said = finished(folder, out)
  # A shard without its record, killed between the two, is done again.
  kept = int(said.split(" shards kept from an earlier run")[0].split()[-1])
  assert done - 1 <= kept <= done
  assert digest(out) == digest(folder / "undisturbed")
  assert verify_cache(out).ok
  assert len(open_cache(out)) == IMAGES


@pytest.mark.slow
@pytest.mark.parametrize(
  "flags",
  [(), ("--direct_running_mode=multi_threading", "--direct_num_workers=2")],
  ids=["plain", "threads"],
)
def test_ctrl_c_can_be_resumed_from(folder, tmp_path, flags):
  out = tmp_path / "cache"
  process = extraction(folder, out, *flags)
  wait_for_shards(process, out, 2)
  process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 130
  _, classes, line = err.splitlines()
  assert classes.startswith("classes of photos: ")
  assert "an extraction resumes when the same command" in line
  assert not (out / "cache_info.json").exists()

  said = finished(folder, out, *flags)
  assert " 0 shards kept" not in said
  assert digest(out) == digest(folder / "undisturbed")


@pytest.fixture
def worker_pool(monkeypatch) -> Iterator[str]:
  """Where a cluster's engine would ask for a worker process."""
  here = pathlib.Path(sys.executable).parent  # The pool starts any "python".
  monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
  where, server = BeamFnExternalWorkerPoolServicer.start(use_process=True)
  yield where
  server.stop(None)


@pytest.mark.slow
def test_a_worker_pool_makes_the_same_bytes(folder, tmp_path, worker_pool):
  flags = (
    *("--runner=PortableRunner", "--job_endpoint=embed"),
    *("--environment_type=EXTERNAL", f"--environment_config={worker_pool}"),
    "--stall-seconds=60",
  )
  said = finished(folder, tmp_path / "cache", *flags)
  assert f"{IMAGES} images in" in said
  assert digest(tmp_path / "cache") == digest(folder / "undisturbed")


@pytest.mark.slow
def test_a_worker_process_that_dies_is_noticed(folder, tmp_path):
  out = tmp_path / "cache"
  process = extraction(folder, out, *PROCESSES)
  wait_for_shards(process, out, 2)
  tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
  os.kill(
    int(" ".join(t.read_text() for t in tasks).split()[0]), signal.SIGKILL
  )
  _, err = process.communicate(timeout=60)
  assert process.returncode == 1
  assert re.search(
    r"error: a worker process ended with status -9 .* of 20 shards \(\d+, ", err
  )
  said = finished(folder, out)
  assert " 0 shards kept" not in said
  assert "0 undecodable" in said
  assert digest(out) == digest(folder / "undisturbed")
