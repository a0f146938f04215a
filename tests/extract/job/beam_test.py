"""Extractions on Beam's runners on this machine: their bytes, faults, ends."""

import dataclasses
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest

from oneshot_dp.configs.errors import BrokenImageError, RunError
from oneshot_dp.configs.extract_config import PreprocessConfig, SourceConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import INFO_FILE
from oneshot_dp.extract.cache.shard_file import CacheJob, read_shard
from oneshot_dp.extract.job import beam_options, on_beam, shard, worker
from oneshot_dp.extract.job.job import absolute_job, run_extraction
from oneshot_dp.extract.sources.open_source import open_source
from tests.cluster.processes import free_port
from tests.extract.cache.caches import digest, make_info
from tests.extract.job.jobs import BACKBONE, N, job_of, write_folder
from tests.extract.refusals import refused

THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
# As a cluster would: a job server, and workers that it asks for.
PORTABLE = [
  *("--runner=PortableRunner", "--job_endpoint=embed"),
  "--environment_type=LOOPBACK",
]
PROCESSES = ["--direct_running_mode=multi_processing"]
BROKEN = (3, 13, N - 1)
TWO = [*PROCESSES, "--direct_num_workers=2"]
GOES_ON = "the same command resumes"
# Whoever is the first to see it: Beam its channel, we the process.
LOST = "(Channel closed prematurely|with status 137).*run the same command"


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> pathlib.Path:
  """Images of which three are broken, in three shards."""
  folder = tmp_path_factory.mktemp("images") / "photos"
  write_folder(folder, N, bad=BROKEN)
  return folder


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory) -> dict[str, str]:
  """What the job makes in a loop, without the broken images."""
  out = tmp_path_factory.mktemp("caches") / "whole"
  run_extraction(job_of(photos, on_decode_error="skip"), str(out))
  return digest(out)


@pytest.mark.long
@pytest.mark.parametrize(
  "flags",
  [[], THREADS, PORTABLE, PROCESSES],
  ids=["loop", "threads", "portable", "processes"],
)
def test_broken_images_are_named_at_once_or_skipped_on_any_runner(
  photos, whole, tmp_path, capfd, monkeypatch, flags
):
  out = tmp_path / "cache"
  loaded = []

  def load(*of, load=shard.load_backbone):
    loaded.append(of)
    return load(*of)

  monkeypatch.setattr(shard, "load_backbone", load)
  with refused("3 of 70 images cannot be decoded", BrokenImageError) as caught:
    run_extraction(job_of(photos), str(out), flags)
  for i in BROKEN:
    assert f"{i:04d}.png" in str(caught.value)
  assert "--on-decode-error skip" in str(caught.value)
  if flags != PROCESSES:
    assert "Traceback" not in capfd.readouterr().err
  assert not (out / INFO_FILE).exists()
  # It goes on, and makes the same bytes as a loop.
  run_extraction(job_of(photos, on_decode_error="skip"), str(out), flags)
  assert digest(out) == whole
  assert len(loaded) == 2  # once a run: its threads share it


@pytest.mark.slow
def test_flags_that_make_no_sense(photos, tmp_path):
  for flag, said in {
    "--nope=3": "--nope is neither a flag of this command nor",
    "b.parquet": "b.parquet is neither a flag",
    "-units": "-units is neither a flag",
    "--direct_num_worker=2": "--direct_num_worker is neither a flag",
    "--direct_num_workers=many": "invalid int value: 'many'",
    "--direct_running_mode=quick": "invalid choice: 'quick'",
    "--runner=NoSuchRunner": "Unexpected pipeline runner: NoSuchRunner",
    "--runner=apache_beam.runners.None": "has no attribute 'None'",
    "--runner=DataflowRunner": "Missing required option: project",
  }.items():
    with refused(said):
      run_extraction(job_of(photos), str(tmp_path / "cache"), [flag])
  with refused("is among the images: name another place"):
    run_extraction(job_of(photos), str(photos / "cache"))


def test_words_that_no_engine_takes_are_refused_for_any_runner(tmp_path):
  for words in (
    ["--runner=FlinkRunner", "--flink_master=x", "b.parquet"],
    ["--runner=PortableRunner", "--job_endpoint=embed", "-units", "o.csv"],
    ["--runner=DataflowRunner", "--projekt=x"],
  ):
    with refused("is neither a flag of this command nor a Beam option"):
      beam_options.pipeline_options(words)
  engine = ["--runner=FlinkRunner", "--flink_master=x", "--parallelism=2"]
  beam_options.pipeline_options(engine)


def test_workers_are_given_absolute_paths(photos, tmp_path, monkeypatch):
  """They may have been started in another folder."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "photos").symlink_to(photos)
  shutil.copy(pathlib.Path(__file__).with_name("backbone.py"), "own.py")
  config = job_of(pathlib.Path("photos"), backbone="own.py:embed")
  image = np.full((2, 8, 8, 3), 255, np.uint8)
  np.savez("images.npz", image=image, label=np.arange(2))
  info = CacheJob(info=make_info())
  source = open_source(config.source)
  job = shard.Job("c", config, info, source, shard.load_embedder(config))
  job = absolute_job(job)
  assert job.out == f"{tmp_path}/c"
  assert job.config.backbone == f"{tmp_path}/own.py:embed"
  assert job.source.root == f"{tmp_path}/photos"
  table = SourceConfig(location=("images.npz",), num_classes=2)
  job = absolute_job(job._replace(source=open_source(table)))
  (file,) = job.source.files
  assert file.path == f"{tmp_path}/images.npz"


class ForgetfulLaunches(worker._Launches):
  """Threads of the launcher read what it wrote, as workers elsewhere do."""

  def put(self, run, job):
    pass


@pytest.mark.long
def test_workers_are_asked_for_numbers_alone_and_find_the_rest(
  photos, whole, tmp_path, monkeypatch
):
  """What an engine shows of a job tells nothing of the listing."""
  graphs = []
  out = str(tmp_path / "cache")

  def seen(pipeline, run=on_beam.beam.Pipeline.run):
    graphs.append(str(pipeline.to_runner_api()))
    return run(pipeline)

  monkeypatch.setattr(on_beam.beam.Pipeline, "run", seen)
  monkeypatch.setattr(worker, "_launches", ForgetfulLaunches())
  job = job_of(photos, on_decode_error="skip")
  info = run_extraction(job, out, THREADS).info
  assert digest(out) == whole
  name = info.shard_name(0)
  store = storage.store_at(out)
  _, (of_job,), _ = read_shard(store, name, info)
  (graph,) = graphs
  assert of_job not in graph
  assert "0013.png" not in graph
  assert len(graph) < 60_000


@pytest.mark.long
def test_a_worker_computes_as_the_launcher_or_not_at_all(
  photos, tmp_path, monkeypatch
):
  """Whatever devices and libraries it has."""
  config = job_of(photos, backbone="glyph_vit", preprocess=PreprocessConfig())
  of = CacheJob(info=make_info()), open_source(config.source)
  job = shard.Job(str(tmp_path), config, *of, shard.load_embedder(config))
  assert config.compute_dtype is None
  run = worker.launch(job)
  left = (tmp_path / f"job.launch.{run}").read_text()
  assert '"compute_dtype":"float32"' in left

  monkeypatch.setattr(worker, "_launches", ForgetfulLaunches())
  most = resource.getrlimit(resource.RLIMIT_CORE)[1]
  resource.setrlimit(resource.RLIMIT_CORE, (most, most))
  with refused("the job's files do not exist here", RunError):
    worker.load_job(str(tmp_path), "run")
  assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0  # no core dumps
  other = {"libraries": {"jax": "0.0.1"}}
  monkeypatch.setattr(worker, "compute_environment", lambda *_: other)
  with refused("libraries of the backbone is", RunError):
    run_extraction(job_of(photos), str(tmp_path / "cache"), THREADS)


@pytest.mark.long
def test_a_stall_stops_the_workers_and_says_so(
  photos, whole, tmp_path, monkeypatch
):
  out = tmp_path / "cache"
  calls = []
  apply = shard.Embedder.__call__

  def hung(self, images):
    calls.append(time.monotonic())
    time.sleep(1.2)
    return apply(self, images)

  monkeypatch.setattr(worker, "_LOOK_SECONDS", 0.1)
  job = job_of(photos, on_decode_error="skip")
  with monkeypatch.context() as patch:
    patch.setattr(shard.Embedder, "__call__", hung)
    stalls = dataclasses.replace(job, stall_seconds=1)
    with refused("no shard finished in 1 s", RunError) as caught:
      run_extraction(stalls, str(out), ["--runner=DirectRunner"])
  assert "may still run" not in str(caught.value)
  assert len(calls) < 5  # of seven batches in all
  assert not (out / INFO_FILE).exists()
  assert list(out.glob("job.stop.*"))
  run_extraction(job, str(out))
  assert digest(out) == whole


@pytest.mark.long
def test_what_cannot_be_stopped_is_said(photos, tmp_path, monkeypatch):
  """A runner whose job goes on, whatever it is told."""
  monkeypatch.setattr(on_beam, "DRAIN_SECONDS", 0.1)
  monkeypatch.setattr(on_beam, "CANCEL_SECONDS", 0.1)

  class Deaf:
    def cancel(self):
      time.sleep(2)

    wait_until_finish = cancel

  monkeypatch.setattr(on_beam.beam.Pipeline, "run", lambda _: Deaf())
  job = job_of(photos, stall_seconds=1)
  with (
    socket.create_server(("localhost", 0)) as server,
    refused("may still run as .* on the engine behind", RunError) as caught,
  ):
    run_extraction(job, str(tmp_path / "cache"), behind(server))
  assert "cancel it there" in str(caught.value)


def behind(server: socket.socket) -> list[str]:
  """Flags of an engine whose job server runs already."""
  endpoint = f"--job_endpoint=localhost:{server.getsockname()[1]}"
  return ["--runner=PortableRunner", endpoint]


@pytest.fixture
def lost_server(monkeypatch):
  """A job server that is lost as soon as it is asked for anything."""

  def run(_):
    with grpc.insecure_channel(f"localhost:{free_port()}") as channel:
      channel.unary_unary("/ask")(b"")

  monkeypatch.setattr(on_beam.beam.Pipeline, "run", run)


def test_a_lost_job_server_may_leave_its_job_to_the_engine(
  photos, tmp_path, lost_server
):
  begin = time.monotonic()
  with (
    socket.create_server(("localhost", 0)) as server,
    refused("server was lost: .* may still run as", RunError),
  ):
    run_extraction(job_of(photos), str(tmp_path / "cache"), behind(server))
  assert time.monotonic() - begin < on_beam.CANCEL_SECONDS


def test_a_job_ends_with_a_job_server_that_the_command_has(
  photos, tmp_path, lost_server
):
  with refused("was lost, and the job ended with it", RunError) as caught:
    run_extraction(job_of(photos), str(tmp_path / "cache"), PORTABLE)
  assert "may still run" not in str(caught.value)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
  """Images that take a while, their job, and what it makes of them."""
  folder = tmp_path_factory.mktemp("many")
  write_folder(folder / "photos", 300, side=24)
  shown = PreprocessConfig(image_size=96)
  job = job_of(folder / "photos", preprocess=shown, shard_rows=10)
  run_extraction(job, str(folder / "whole"))
  return folder / "photos", job, digest(folder / "whole")


def interrupt(process):
  process.send_signal(signal.SIGINT)


def kill(process):
  process.kill()


def kill_worker(process):
  pid = process.pid
  for _ in range(2):  # a shell, and in it the worker
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    pid = int(" ".join(task.read_text() for task in tasks).split()[0])
  os.kill(pid, signal.SIGKILL)


STOPS = {
  "loop, killed": ([], kill, -9, ""),
  "threads, Ctrl-C": (THREADS, interrupt, 130, GOES_ON),
  "processes, Ctrl-C": (TWO, interrupt, 130, GOES_ON),
  "processes, killed": (PROCESSES, kill, -9, ""),
  "processes, a worker killed": (PROCESSES, kill_worker, 1, LOST),
}


@pytest.mark.long
@pytest.mark.parametrize("how", STOPS)
def test_a_stopped_command_goes_on(many, tmp_path, how):
  flags, stop, status, said = STOPS[how]
  photos, job, whole = many
  words = [str(photos), "--backbone", BACKBONE, "--image-size", "96"]
  words += ["--batch-size", "16", "--shard-rows", "10", "--out", "cache"]
  out = tmp_path / "cache"
  with subprocess.Popen(
    [sys.executable, "-m", "oneshot_dp", "extract", *words, *flags],
    cwd=tmp_path,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    while process.poll() is None and not list(out.glob("*record-*")):
      time.sleep(0.01)
    stop(process)
    _, err = process.communicate(timeout=100)
  assert process.returncode == status
  assert not (out / INFO_FILE).exists()
  assert re.search(said, err, re.DOTALL)
  assert "may still run" not in err
  # Workers may have outlived their launcher.
  run_extraction(job, str(out))
  assert digest(out) == whole
