"""Processes of their own on the loopback, as hosts of one run."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.hosts import ALONE, Hosts
from tests.linear_dp import host_worker
from tests.linear_dp.statistic_catalogue import (
  STATISTICS,
  data_of,
  hostile_rows,
)

LOST = re.compile(
  r"oneshot-dp: error: another host of this run was lost[^\n]*\n"
)


def free_port():
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    return found.getsockname()[1]


@pytest.fixture
def hosts():
  """Starts a worker on so many hosts; (status, stdout, stderr) of each."""
  started = []

  def start_all(what, count=2, place="{}/{}@127.0.0.1:{}", **environment):
    port = free_port()
    for index in range(count):
      env = dict(os.environ)
      env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
      env["ONESHOT_DP_CHECK_TYPES"] = "0"
      for name, value in environment.items():
        env[name] = value.format(index, count, port)
      started.append(
        subprocess.Popen(
          [
            sys.executable,
            "-m",
            "tests.linear_dp.host_worker",
            place.format(index, count, port),
            what,
          ],
          env=env,
          cwd=pathlib.Path(__file__).parents[2],
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          text=True,
        )
      )
    # A frozen one says no more.
    others = [p for i, p in enumerate(started) if (what, i) != ("frozen", 1)]
    said = [(process, process.communicate(timeout=100)) for process in others]
    return [(process.returncode, *outputs) for process, outputs in said]

  yield start_all
  for process in started:
    with process:
      process.kill()


def check_sums(found, names=STATISTICS):
  made = [host_worker.released(ALONE, units, names) for units in (False, True)]
  expected = json.loads(json.dumps(made))
  for status, stdout, stderr in found:
    assert (status, stderr) == (0, "")
    said, done = stdout.splitlines()
    assert json.loads(said) == expected
    assert done == "done"


def test_two_hosts_let_out_what_one_does(hosts):
  """Of rows and of units, noise and all, on both."""
  check_sums(hosts("few"), host_worker.FEW)


@pytest.mark.slow
def test_four_hosts_let_out_what_one_does(hosts):
  check_sums(hosts("sums", count=4))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_slurm_says_which_host_this_is(hosts, count):
  """One task is alone with others' machinery: every statistic works."""
  found = hosts(
    "sums",
    count,
    place="auto",
    SLURM_JOB_ID="1",
    SLURM_STEP_NODELIST="127.0.0.1",
    SLURM_NTASKS="{1}",
    SLURM_PROCID="{0}",
    SLURM_LOCALID="0",
    JAX_COORDINATOR_PORT="{2}",
  )
  check_sums(found)


@pytest.mark.slow
def test_a_host_may_have_no_rows(hosts):
  x, label = hostile_rows(np.random.default_rng(0), n=9)
  data = data_of(x, label)
  expected = [s.exact(data).tolist() for s in STATISTICS.values()]
  for status, stdout, _ in hosts("empty"):
    assert status == 0
    assert json.loads(stdout.splitlines()[0]) == expected


@pytest.mark.slow
def test_what_one_host_fails_with_all_do_and_they_go_on(hosts):
  first, second = hosts("error")
  assert first[0] == second[0] == 0
  kinds = "InputError", "RunError"
  said = [f"{kind} host 1: a shard is damaged" for kind in kinds]
  other = (
    "host 1 has another cache than host 0: start the same version, with the"
    " same flags and cache, on all."
  )
  # (Nobody but host 0 makes what comes from it.)
  expected = [*said, other, "done"]
  assert first[1].splitlines() == second[1].splitlines() == expected


@pytest.mark.slow
@pytest.mark.parametrize("what", ["killed", "frozen"])
def test_a_lost_host_is_one_line_on_the_others(hosts, what):
  found = hosts(what, count=3)
  for status, stdout, stderr in (found[0], found[-1]):
    assert (status, stdout) == (1, "")
    assert LOST.fullmatch(stderr)


@pytest.mark.slow
def test_a_host_that_fails_says_why_and_the_others_that_it_is_lost(hosts):
  first, second = hosts("failed")
  assert first[0] == second[0] == 1
  assert first[2].startswith("oneshot-dp: error: the disk is full.\n")
  assert LOST.fullmatch(second[2])


@pytest.mark.slow
def test_hosts_that_do_not_meet_say_so_in_a_line(hosts):
  (found,) = hosts(
    "sums", 1, place="1/2@127.0.0.1:{2}", ONESHOT_DP_JOIN_SECONDS="1"
  )
  status, stdout, stderr = found
  assert (status, stdout) == (1, "")
  assert "the hosts did not meet within 1 s" in stderr
  assert stderr.count("\n") == 1


def test_one_host_is_alone(monkeypatch):
  assert Hosts.of(None) is ALONE
  assert Hosts.of("0/1@10.0.0.1:1234") is ALONE
  for name, value in (("NUM_PROCESSES", "1"), ("PROCESS_ID", "0")):
    monkeypatch.setenv(f"JAX_{name}", value)
  assert Hosts.of("auto") is ALONE
  ALONE.agree("cache", "any")


@pytest.mark.parametrize(
  ("text", "environment", "message"),
  [
    ("two", {}, "must be auto, or INDEX/COUNT@HOST:PORT"),
    ("1@h:1", {}, "must be auto, or INDEX/COUNT@HOST:PORT"),
    ("0/2@host", {}, "must be auto, or INDEX/COUNT@HOST:PORT"),
    ("2/2@h:1", {}, "hosts are 0 to COUNT - 1"),
    ("auto", {"JAX_PROCESS_ID": "x\n"}, r"JAX_PROCESS_ID='x\\n' must be a num"),
    ("auto", {"JAX_NUM_PROCESSES": "-1"}, "JAX_NUM_PROCESSES='-1' must be a"),
    ("0/2@h:1", {"ONESHOT_DP_JOIN_SECONDS": "1.5"}, "must be a number"),
  ],
)
def test_a_place_that_is_none_is_refused(
  text, environment, message, monkeypatch
):
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(InputError, match=message):
    Hosts.of(text)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_shards_and_units_are_each_of_one_host(count):
  everyone = [Hosts(i, count) for i in range(count)]
  shards = [host.own_shards(13, has_units=False) for host in everyone]
  if count == 1:
    assert shards == [None]
  else:
    assert sorted(i for own in shards for i in own or ()) == list(range(13))
  assert {host.own_shards(13, has_units=True) for host in everyone} == {None}
  ids = np.random.default_rng(0).integers(-(2**62), 2**62, 4000)
  ids[:1000] = np.arange(1000)
  owners = np.sum([host.own_units(ids) for host in everyone], axis=0)
  assert (owners == 1).all()
  sizes = [host.own_units(ids[:1000]).sum() for host in everyone]
  assert min(sizes) > 0.7 * 1000 / count
