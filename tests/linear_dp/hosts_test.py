"""Processes of their own on the loopback, as hosts of one run."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.distributed import exit
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts
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


def test_host_that_lost_the_others_says_so_however_often_it_meets(monkeypatch):
  """An error within another is met with twice, and nobody waits for ever."""
  monkeypatch.setattr(exit.atexit, "register", lambda _: None)
  lost = exit.LostHostExit()

  with pytest.raises(RunError, match="another host of this run was lost"):
    lost.raise_lost(RuntimeError())
  with pytest.raises(RunError, match="another host of this run was lost"):
    lost.raise_lost(RuntimeError())


@pytest.fixture(scope="module")
def hosts():
  """Starts a worker on so many hosts; `said` is for these."""
  started = []

  def start_all(what, count=2, place="{}/{}@127.0.0.1:{}", **environment):
    port = free_port()
    command = sys.executable, "-m", "tests.linear_dp.host_worker"
    group = []
    for index in range(count):
      env = dict(os.environ)
      env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
      env["ONESHOT_DP_CHECK_TYPES"] = "0"
      for name, value in environment.items():
        env[name] = value.format(index, count, port)
      group.append(
        subprocess.Popen(
          [*command, place.format(index, count, port), what],
          env=env,
          cwd=pathlib.Path(__file__).parents[2],
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          text=True,
        )
      )
    started.extend(group)
    return group

  yield start_all
  for process in started:
    with process:
      process.kill()


def said(group):
  """(status, stdout, stderr) of each."""
  outputs = [process.communicate(timeout=100) for process in group]
  return [(p.returncode, *o) for p, o in zip(group, outputs, strict=True)]


def check_sums(printed, names):
  made = [host_worker.released(ALONE, units, names) for units in (False, True)]
  assert json.loads(printed) == json.loads(json.dumps(made))


@pytest.fixture(scope="module")
def two_hosts(hosts):
  """What each of two printed that did one thing after the other."""
  found = said(hosts("many things"))
  for status, stdout, stderr in found:
    assert (status, stderr) == (0, "")
    assert stdout.splitlines()[-1] == "done"
  return [stdout.splitlines()[:-1] for _, stdout, _ in found]


@pytest.mark.long
def test_two_hosts_release_the_same_bits_as_one(two_hosts):
  """Of rows and of units, noise and all, on both."""
  for sums, *_ in two_hosts:
    check_sums(sums, host_worker.FEW)


@pytest.mark.long
def test_a_host_may_have_no_rows(two_hosts):
  data = data_of(*hostile_rows(np.random.default_rng(0), n=9))
  expected = [STATISTICS[n].exact(data).tolist() for n in host_worker.FEW]
  assert [json.loads(empty) for _, empty, *_ in two_hosts] == [expected] * 2


@pytest.mark.long
def test_rows_of_which_no_host_alone_sees_a_fault_are_refused_on_all(two_hosts):
  faults = [
    "the rows: example_id=0: it comes more than once. Run `oneshot-dp verify`"
    " on the cache, then make it again.",
    "the rows: the rows of one of their owners weigh more than a unit may: make"
    " the cache again.",
  ]
  assert [printed[2:4] for printed in two_hosts] == [faults] * 2


@pytest.mark.long
def test_an_error_of_one_host_is_raised_on_all_and_they_go_on(two_hosts):
  kinds = "InputError", "RunError"
  errors = [f"{kind} host 1: a shard is damaged" for kind in kinds]
  errors.append("host 1: no cache")
  other = (
    "host 1 has a different cache than host 0: start the same version, with the"
    " same flags and cache, on all hosts."
  )
  # (Nobody but host 0 makes what comes from it.)
  assert [printed for _, _, _, _, *printed in two_hosts] == [
    [*errors, other]
  ] * 2


BY_SLURM = {
  "SLURM_JOB_ID": "1",
  "SLURM_STEP_NODELIST": "127.0.0.1",
  "SLURM_NTASKS": "{1}",
  "SLURM_PROCID": "{0}",
  "SLURM_LOCALID": "0",
  "JAX_COORDINATOR_PORT": "{2}",
}


@pytest.mark.long
@pytest.mark.parametrize(
  ("count", "what", "names"),
  [(1, "few", host_worker.FEW), (4, "sums", STATISTICS)],
  ids=["one", "four"],
)
def test_slurm_tells_each_host_its_place(hosts, count, what, names):
  """And four let out what one does; one is alone with others' machinery."""
  found = said(hosts(what, count, "auto", **BY_SLURM))
  for status, _, stderr in found:
    assert (status, stderr) == (0, "")
  ((sums, done),) = {tuple(stdout.splitlines()) for _, stdout, _ in found}
  assert done == "done"
  check_sums(sums, names)


@pytest.mark.long
def test_a_lost_host_is_one_line_on_the_others(hosts):
  """Of three the second is killed, or frozen, and says no more."""
  # All start at once: what takes long is to see that one is lost.
  groups = [hosts("killed", 3), hosts("frozen", 3)]
  for first, _, last in groups:
    for status, stdout, stderr in said([first, last]):
      assert (status, stdout) == (1, "")
      assert LOST.fullmatch(stderr)


@pytest.mark.long
def test_host_that_fails_prints_its_error_and_is_lost_to_the_other(hosts):
  failed, other = said(hosts("failed", 2))

  assert (failed[0], other[0]) == (1, 1)
  assert failed[2].startswith("oneshot-dp: error: the disk is full.\n")
  assert LOST.fullmatch(other[2])


@pytest.mark.long
def test_hosts_that_do_not_meet_print_one_line_with_the_address(hosts):
  place = "1/2@127.0.0.1:{2}"
  ((status, stdout, stderr),) = said(
    hosts("sums", 1, place, ONESHOT_DP_JOIN_SECONDS="1")
  )
  assert (status, stdout) == (1, "")
  assert re.search(r"did not meet within 1 s at 127\.0\.0\.1:\d+;", stderr)
  assert stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1])
def test_hosts_that_slurm_placed_and_do_not_meet_print_the_address(
  hosts, index
):
  of_two = BY_SLURM | {"SLURM_NTASKS": "2", "SLURM_PROCID": str(index)}
  ((status, stdout, stderr),) = said(
    hosts("sums", 1, "auto", ONESHOT_DP_JOIN_SECONDS="1", **of_two)
  )
  assert (status, stdout) == (1, "")
  assert re.search(r"did not meet within 1 s at 127\.0\.0\.1:\d+;", stderr)
  assert stderr.count("\n") == 1


@pytest.mark.long
def test_sigterm_ends_hosts_that_have_met(hosts):
  """JAX would take it for a notice, and go on."""
  for status, stdout, _ in said(hosts("terminated")):
    assert (status, stdout) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("place", [None, "0/1@10.0.0.1:1234", "auto"])
def test_join_of_a_single_host_is_alone(monkeypatch, place):
  monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
  monkeypatch.setenv("JAX_PROCESS_ID", "0")

  assert Hosts.join(place) is ALONE


def test_host_that_is_alone_agrees_with_itself():
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
def test_join_with_an_invalid_place_is_refused(
  text, environment, message, monkeypatch
):
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(InputError, match=message):
    Hosts.join(text)


def all_hosts(count: int) -> list[Hosts]:
  return [Hosts(index, count) for index in range(count)]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_each_shard_belongs_to_one_of_several_hosts(count):
  shards = []
  for host in all_hosts(count):
    shards.extend(host.own_shards(13, has_whole_units=False) or ())

  assert sorted(shards) == list(range(13))


def test_own_shards_of_a_single_host_are_all():
  assert Hosts(0, 1).own_shards(13, has_whole_units=False) is None


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_own_shards_of_rows_with_units_are_all_on_each_host(count):
  for host in all_hosts(count):
    assert host.own_shards(13, has_whole_units=True) is None


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_unit_belongs_to_one_host(count):
  ids = np.random.default_rng(0).integers(-(2**62), 2**62, 4000)

  owned = [host.own_units(ids) for host in all_hosts(count)]

  np.testing.assert_array_equal(np.sum(owned, axis=0), 1)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_units_of_small_numbers_are_spread_over_all_hosts(count):
  ids = np.arange(1000)

  sizes = [host.own_units(ids).sum() for host in all_hosts(count)]

  assert min(sizes) > 0.7 * 1000 / count
