"""Several processes on the loopback, as hosts of one run."""

import dataclasses
import functools
import pathlib
import signal
import socket
import threading
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest

from oneshot_dp.configs.head_config import (
  HeadConfig,
  MethodName,
  PrivacyConfig,
  StepsConfig,
)
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.public_start import PublicStart
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts, JoinedHosts
from oneshot_dp.linear_dp.trainer import Trainer
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.shell.many_hosts import address_to_bind, place_of
from oneshot_dp.pipeline.training.hosts import _check_alike, _program, _serve
from oneshot_dp.pipeline.training.public_rows import choosing_trainer
from oneshot_dp.pipeline.training.train_heads import (
  cache_trainer,
  make_plan,
  plan_heads,
)
from tests.linear_dp.rows.hosts_test import on_all
from tests.pipeline.command_line import TRAIN as LAMB
from tests.pipeline.command_line import Copy, fails, one_line, succeeds
from tests.pipeline.sample_caches import (
  CLASSES,
  DIM,
  write_clusters,
  write_rows,
)

# No host but the first may draw a random bit.
_NO_NOISE = (
  "from oneshot_dp.linear_dp.noise.source import NoiseSource;"
  " NoiseSource.words = NoiseSource.bits = None"
)


def free_port() -> int:
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    return found.getsockname()[1]


@pytest.fixture(scope="module")
def few_steps():
  """Other processes know nothing of it."""


@pytest.fixture
def hosts(monkeypatch, tmp_path):
  """Starts a command on so many hosts, each with two devices."""
  monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
  started: list[Copy] = []

  def start_all(
    argv: Sequence[object], firsts: Sequence[str], *, slurm: bool = False
  ) -> list[tuple[int, str, str]]:
    port, count = free_port(), len(firsts)
    for index, first in enumerate(firsts):
      ledgers = tmp_path / ("ledgers" if index == 0 else f"none-{index}")
      monkeypatch.setenv("ONESHOT_DP_LEDGER_DIR", str(ledgers))
      place = "auto" if slurm else f"{index}/{count}@127.0.0.1:{port}"
      for name, value in {
        "SLURM_JOB_ID": 1,
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": count,
        "SLURM_PROCID": index,
        "SLURM_LOCALID": 0,
        "JAX_COORDINATOR_PORT": port,
      }.items():
        if slurm:
          monkeypatch.setenv(name, str(value))
      out = ["--out", tmp_path / f"out-{index}"]
      started.append(Copy([*argv, "--hosts", place, *out], first=first))
    monkeypatch.setenv("ONESHOT_DP_LEDGER_DIR", str(tmp_path / "ledgers"))
    own = started[-count:]
    said = [process.communicate(timeout=100) for process in own]
    return [
      (process.returncode, *of_one)
      for process, of_one in zip(own, said, strict=True)
    ]

  yield start_all
  for process in started:
    process.kill()


def killed_at(meeting: int) -> str:
  """Makes a host kill itself when it is to meet the others so often."""
  return f"""
import os
from oneshot_dp.linear_dp.rows.hosts import JoinedHosts
turns, meet = [], JoinedHosts.meet
def killed(self, error=None):
  turns.append(self)
  if len(turns) == {meeting}:
    os.kill(os.getpid(), 9)
  meet(self, error)
JoinedHosts.meet = killed
"""


@pytest.fixture
def public_cache(tmp_path) -> FeatureCache:
  rng = np.random.default_rng(9)
  rows = Rows(
    embedding=rng.standard_normal((100, DIM)).astype(np.float32),
    label=rng.integers(0, CLASSES, 100),
    example_id=np.arange(100),
    unit_id=None,
  )
  return write_rows(tmp_path / "public", rows, dataset="other", split="public")


def heads_in(folder: pathlib.Path) -> dict[str, bytes]:
  return {
    str(file.relative_to(folder)): file.read_bytes()
    for file in sorted(folder.rglob("head.safetensors"))
  }


PRIVACY = PrivacyConfig(delta=1e-5)
TRAIN = (
  *("train", "--epsilon", 2, "--delta", 1e-5, "--head", "multi-step"),
  *("--steps.epochs", 3, "--noise-seed", 3),
)


@pytest.mark.slow
def test_hosts_train_the_heads_of_one(
  hosts, capsys, tmp_path, eval_cache, public_cache
):
  """Bit for bit, of users with rows on two; a third has no shard."""
  train = write_clusters(
    tmp_path / "train",
    shard_rows=128,
    privacy_unit="user",
    unit_id=np.arange(180) % 50,
  )
  command = [
    *("compare", "--cache", train.path, "--eval-cache", eval_cache.path),
    *("--epsilons", 2, "--delta", 1e-5, "--noise-seed", 3),
    *("--public-cache", public_cache.path),
    *("--public-statistics", "mean-and-covariance"),
  ]
  succeeds(capsys, *command, "--out", tmp_path / "alone")
  (status, out, said), *others = hosts(command, ["pass", *[_NO_NOISE] * 2])
  assert status == 0, said
  assert "6 heads" in out
  assert others == [(0, "", "")] * 2
  expected = heads_in(tmp_path / "alone")
  assert len(expected) == 6
  assert heads_in(tmp_path / "out-0") == expected
  # Neither results nor a ledger, but of host 0.
  there = {path.name for path in tmp_path.iterdir()}
  assert there == {"train", "public", "alone", "out-0", "ledgers"}


WHITENED = HeadConfig(head="whitened")
POISSON = StepsConfig(epochs=2, sampling="poisson", batch_size=40)
FEW = StepsConfig(epochs=2)
HEADS = [
  *(
    (
      HeadConfig(head=m, steps=FEW if m == "multi-step" else StepsConfig()),
      None,
    )
    for m in get_args(MethodName)
  ),
  (HeadConfig(head="lamb"), 2),
  (HeadConfig(head="multi-step", steps=POISSON), None),
]
"""Settings, and how many rows of each unit are summed."""


@pytest.mark.slow
@pytest.mark.parametrize("of_units", [False, True])
def test_heads_that_take_turns(monkeypatch, tmp_path, of_units):
  """Bit for bit those of one host, on threads; host 0 alone draws noise."""
  few = functools.partial(WhiteningRule, num_steps=3)
  monkeypatch.setattr(whitened, "WhiteningRule", few)
  units: dict[str, Any] = {
    "privacy_unit": "user",
    "unit_id": np.arange(180) % 50,
  }
  train = write_clusters(
    tmp_path / "train", shard_rows=128, **units if of_units else {}
  )
  draws, words = [], NoiseSource.words
  monkeypatch.setattr(
    NoiseSource,
    "words",
    lambda *args: draws.append(threading.get_ident()) or words(*args),
  )

  plan = functools.partial(plan_heads, epsilons=(2.0,), privacy=PRIVACY)
  asked = [each for each in HEADS if of_units or not each[1]]
  one = make_plan((2.0,), PRIVACY, order="independent")
  start = PublicStart.of(
    np.eye(CLASSES, DIM), num_classes=CLASSES, feature_dim=DIM
  )

  def released(*trainers: tuple[Trainer, ReleasePlan]) -> list[Any]:
    for trainer, _ in trainers:
      trainer.read()
    return [
      (
        trained.head.kernel.tobytes(),
        trained.head.bias.tobytes(),
        trained.mechanism,
      )
      for trainer, plan in trainers
      for trained in trainer.release(plan, NoiseSource(3), lambda *_: None)
    ]

  def heads(host: Hosts) -> list[Any]:
    found = released(
      *(
        (cache_trainer(train, [config], most, hosts=host), plan(config, 180))
        for config, most in asked
      ),
      (cache_trainer(train, [WHITENED], start=start, hosts=host), one),
    )
    methods = [config for config, _ in HEADS[:4]]
    choice = choosing_trainer(train, methods, None, host)
    return found + released((choice, one))

  def work(host: JoinedHosts) -> tuple[list[Any], int]:
    if host.index:
      _serve(train, host)
      return [], threading.get_ident()
    found = heads(host)
    host.end(None, 0)
    return found, threading.get_ident()

  alone = heads(ALONE)
  draws.clear()
  (found, lead), *_ = on_all(work)
  assert found == alone
  assert set(draws) == {lead}


@pytest.mark.slow
def test_a_killed_host_ends_all(hosts, capsys, tmp_path, users):
  """After the charge, in the second of its steps; the same command goes on.

  There on hosts that SLURM's variables name.
  """
  command = [*TRAIN, "--cache", users[0].path]
  succeeds(capsys, *command, "--out", tmp_path / "alone")
  ledger = Ledger(users[0].info.dataset)
  paid = len(ledger.entries()) + 1
  (status, _, _), other = hosts(command, [killed_at(meeting=12), "pass"])
  assert status == -signal.SIGKILL
  assert other[:2] == (1, "")
  assert "another host of this run was lost" in one_line(other[2])
  assert len(ledger.entries()) == paid
  assert not (tmp_path / "out-0").exists()
  (status, _, said), other = hosts(command, ["pass", _NO_NOISE], slurm=True)
  assert status == 0, said
  assert "going on: it is paid for, 1 release is kept" in said
  assert other == (0, "", "")
  assert heads_in(tmp_path / "out-0") == heads_in(tmp_path / "alone")
  assert len(ledger.entries()) == paid


_KILLED_AT_THE_END = """
import os
from oneshot_dp.linear_dp.rows.hosts import JoinedHosts
hear = JoinedHosts._hear
def killed(self):
  said = hear(self)
  if said.startswith("end"):
    os.kill(os.getpid(), 9)
  return said
JoinedHosts._hear = killed
"""
_LEAVES_SOON = (
  "from oneshot_dp.pipeline.training import hosts; hosts._LEAVE_SECONDS = 1"
)


@pytest.mark.slow
def test_a_host_lost_at_the_end_takes_nothing_with_it(hosts, tmp_path, users):
  """The head is there, and nobody is told to start again."""
  command = [*TRAIN, "--cache", users[0].path]
  found, (status, _, _) = hosts(command, [_LEAVES_SOON, _KILLED_AT_THE_END])
  assert status == -signal.SIGKILL
  assert found[0] == 1
  assert heads_in(tmp_path / "out-0")
  assert "what host 0 has written is whole." in found[2].splitlines()[-1]


@pytest.mark.parametrize(
  ("where", "said"),
  [
    ("0/2", "must be auto, or INDEX/COUNT@HOST:PORT"),
    ("x/2@host:1", "must be auto, or INDEX/COUNT@HOST:PORT"),
    ("2/2@host:1", "host 2 is none of 2"),
    ("auto", "JAX_PROCESS_ID='two' must be a number"),
  ],
)
def test_a_place_that_is_none(place, capsys, monkeypatch, where, said):
  """Said before any library is silenced, or host waited for."""
  monkeypatch.setenv("JAX_PROCESS_ID", "two")
  assert said in fails(capsys, *place(LAMB), "--hosts", where)


def test_host_0_listens_at_its_own_address_alone(monkeypatch):
  own, *others = (
    place_of(f"0/2@{host}:1234")
    for host in ("127.0.0.1", "192.0.2.1", "nowhere.invalid")
  )
  assert address_to_bind(own) == "127.0.0.1:1234"
  assert [address_to_bind(other) for other in others] == [None, None]
  monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "[::]:1234")
  assert address_to_bind(own) is None


def test_a_program_is_all_code_below_its_links(tmp_path):
  """As in a checkout: where a file is counts, and what is in it."""
  room, root = tmp_path / "room", tmp_path / "root"
  (room / "inner").mkdir(parents=True)
  root.mkdir()
  (root / "room").symlink_to("../room")
  digests = [_program(root)]
  for name, code in ("a", "x = 1"), ("a", "x = 2"), ("b", "x = 2"):
    for old in (room / "inner").iterdir():
      old.unlink()
    (room / "inner" / f"{name}.py").write_text(code)
    digests.append(_program(root))
  assert len(set(digests)) == 4


_ALIKE = ("program", "flags", "cache")


@dataclasses.dataclass
class _Flags:
  epsilon: float
  cache: pathlib.Path


@pytest.mark.parametrize("other", [*_ALIKE, None])
def test_hosts_that_are_not_alike_are_refused_on_all(other):
  """Where a cache is may differ, and nothing else."""

  def check(host: JoinedHosts) -> None:
    differs = {name: host.index == 1 and name == other for name in _ALIKE}
    _check_alike(
      host,
      _Flags(1.0 + differs["flags"], pathlib.Path(f"on-{host.index}")),
      bytes([differs["program"]] * 32),
      f"{differs['cache']:064x}",
    )

  said = f"host 1 has another {other} than host 0" if other else "None"
  assert all(said in str(found) for found in on_all(check))
