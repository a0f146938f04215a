"""Job servers that a runner starts end with the command that started them."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import grpc
import pytest
from apache_beam.options.pipeline_options import StandardOptions

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.job import on_beam
from oneshot_dp.extract.job.beam_options import pipeline_options
from oneshot_dp.extract.job.job import run_extraction
from oneshot_dp.extract.job.job_server import (
  LOCAL_RUNNER,
  check_engine,
  ends_with_command,
)
from tests.cluster.processes import free_port
from tests.extract.job.jobs import job_of, write_folder

ROOT = pathlib.Path(__file__).parents[3]


def is_running(pid: int) -> bool:
  with contextlib.suppress(OSError):
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    return not state.startswith("Z")
  return False


@pytest.mark.slow
@pytest.mark.parametrize(
  "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
)
def test_a_command_stopped_while_its_server_starts_leaves_none(number):
  with subprocess.Popen(
    [sys.executable, "-m", "tests.extract.job.slow_server"],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  ) as command:
    assert command.stdout is not None
    server = int(command.stdout.readline())
    assert is_running(server)
    time.sleep(0.3)  # It is looked for at short intervals.
    command.send_signal(number)
    command.wait(60)
  try:
    deadline = time.monotonic() + 10
    while is_running(server) and time.monotonic() < deadline:
      time.sleep(0.05)
    assert not is_running(server)
  finally:
    if is_running(server):
      os.kill(server, signal.SIGKILL)


def test_no_job_server_at_the_address_is_said_before_images_are_listed(
  tmp_path,
):
  flags = ["--runner=PortableRunner", f"--job_endpoint=localhost:{free_port()}"]

  with pytest.raises(RunError, match=r"no job server answers there .*start it"):
    run_extraction(job_of(tmp_path / "none"), str(tmp_path / "out"), flags)


@pytest.mark.parametrize(
  ("runner", "flag"),
  [
    ("FlinkRunner", "--flink_master={}"),
    ("FlinkRunner", "--flink_master=http://{}"),
    ("SparkRunner", "--spark_master_url=spark://{}"),
  ],
)
def test_no_engine_at_the_address_is_named_with_its_flag(runner, flag):
  flag = flag.format(f"localhost:{free_port()}")
  options = pipeline_options([f"--runner={runner}", flag])

  with pytest.raises(RunError, match=f"{flag}: no .* answers there"):
    check_engine(options)


@pytest.mark.parametrize(
  ("runner", "flag"),
  [
    ("PrismRunner", "--prism_location"),
    ("FlinkRunner", "--flink_job_server_jar"),
    ("SparkRunner", "--spark_job_server_jar"),
  ],
)
def test_a_program_that_does_not_exist_is_named_with_its_flag(runner, flag):
  options = pipeline_options([f"--runner={runner}", f"{flag}=/none/server"])

  with pytest.raises(InputError, match=f"{flag}=/none/server does not exist"):
    check_engine(options)


def test_a_portable_runner_without_a_job_server_names_the_flag():
  options = pipeline_options(["--runner=PortableRunner"])

  with pytest.raises(InputError, match="needs --job_endpoint=HOST:PORT"):
    check_engine(options)


@pytest.mark.parametrize(
  "flags",
  [
    ["--runner=DirectRunner"],
    ["--runner=PortableRunner", "--job_endpoint=embed"],
    ["--runner=FlinkRunner", "--flink_master=[auto]"],
    ["--runner=SparkRunner", "--spark_master_url=local[2]"],
  ],
)
def test_engines_within_the_command_need_no_address(flags):
  check_engine(pipeline_options(flags))


@pytest.mark.parametrize(
  ("word", "runner"),
  [
    ("flink", "FlinkRunner"),
    ("SPARKRUNNER", "SparkRunner"),
    ("apache_beam.runners.portability.prism_runner.PrismRunner", "PrismRunner"),
    ("direct", LOCAL_RUNNER),
    ("SwitchingDirectRunner", LOCAL_RUNNER),
  ],
)
def test_a_runner_has_the_names_that_beam_takes(word, runner):
  options = pipeline_options([f"--runner={word}"])

  assert options.view_as(StandardOptions).runner == runner


@pytest.mark.parametrize(
  ("flags", "ends"),
  [
    (["--runner=DirectRunner"], True),
    (["--runner=prism"], True),
    (["--runner=FlinkRunner"], True),  # Flink is in its job server
    (["--runner=FlinkRunner", "--flink_master=host:8081"], False),
    (["--runner=SparkRunner", "--spark_master_url=spark://host:7077"], True),
    (["--runner=SparkRunner", "--spark_submit_uber_jar"], False),
    (["--runner=PortableRunner", "--job_endpoint=embed"], True),
    (["--runner=PortableRunner", "--job_endpoint=host:8099"], False),
    (["--runner=FlinkRunner", "--job_endpoint=host:8099"], False),
  ],
)
def test_what_outlives_a_command_is_known_of_each_engine(flags, ends):
  assert ends_with_command(pipeline_options(flags)) == ends


@pytest.mark.filterwarnings(
  "error::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_a_thread_of_beam_that_loses_the_job_server_prints_no_traceback():
  with grpc.insecure_channel(f"localhost:{free_port()}") as channel:
    thread = threading.Thread(target=channel.unary_unary("/ask"), args=(b"",))
    with on_beam._LostWorkers() as lost:
      thread.start()
      thread.join()

  assert lost.statuses == []


@pytest.mark.slow
def test_a_finished_job_leaves_no_temporary_file(tmp_path, monkeypatch):
  write_folder(tmp_path / "photos", 4)
  (tmp_path / "temporary").mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
  flags = ["--runner=PortableRunner", "--job_endpoint=embed"]

  run_extraction(
    job_of(tmp_path / "photos"),
    str(tmp_path / "out"),
    [*flags, "--environment_type=LOOPBACK"],
  )

  assert not list((tmp_path / "temporary").iterdir())
