"""Trains on the hosts of a SLURM cluster, and stops jobs there in the middle.

    python -m tests.cluster.slurm

The daemons of Debian's `slurm-wlm` and `munge` run on this machine, two nodes
with a slurmd each, and get the batch script of pipeline/README.md. A seeded
head of two hosts must have the bytes of one that a single process made. Then a
task is killed after the charge, and a job is stopped by `scancel`: what is said
is one line, nothing is left running, and the same script finishes without a
second charge. Where the nodes' names cannot be given to two hosts of a test
(that takes root, and `unshare`), or there is no SLURM, nothing is tested.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Self

from tests.cluster.processes import (
  ONESHOT_DP,
  ROOT,
  CannotRun,
  free_port,
  stop_when_told,
)
from tests.sample_caches import write_clusters

README = (ROOT / "pipeline" / "README.md").read_text()
SCRIPT = README.partition("```sh train.sbatch\n")[2].partition("```")[0]
"""The batch script that users are told to write."""
OUT = "--out heads/4"
JOB_SECONDS = 120
END_SECONDS = 60
CONFIGURATION = """\
ClusterName=oneshot
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
# Jobs are looked at often, as this test waits for each.
MinJobAge=2
SchedulerParameters=sched_min_interval=0
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=n0,n1 Default=YES
"""
# A node sees a hosts file of its own, in which the nodes have addresses.
WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


class SlurmCluster:
  """munged, slurmctld, and a slurmd for each node; all in `folder`."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    self._processes: dict[str, subprocess.Popen] = {}

  def __enter__(self) -> Self:
    check_tools()
    self._write_files()
    try:
      self._start_munged()
      self._start("slurmctld", ["slurmctld", "-D"])
      for node in ("n0", "n1"):
        apart = ["unshare", "--mount", "sh", "-c", WITH_HOSTS]
        hosts = str(self.folder / "hosts")
        self._start(node, [*apart, hosts, "slurmd", "-D", "-N", node])
      self.wait_for("idle nodes", lambda: self._idle_nodes() == 2)
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *_: object) -> None:
    # The nodes first, or they would start again what is killed here.
    for name in ("slurmctld", "n0", "n1", "munged"):
      if name in self._processes:
        self._processes[name].kill()
        self._processes[name].wait()
    for process in self.processes():
      with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)

  def _write_files(self) -> None:
    for name in ("state", "spool-n0", "spool-n1"):
      (self.folder / name).mkdir()
    key = self.folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    hosts = pathlib.Path("/etc/hosts").read_text()
    (self.folder / "hosts").write_text(f"{hosts}\n127.0.0.1 n0 n1\n")
    text = CONFIGURATION.format(
      host=socket.gethostname(),
      folder=self.folder,
      ports=[free_port() for _ in range(3)],
    )
    (self.folder / "slurm.conf").write_text(text)

  def _start_munged(self) -> None:
    flags = [
      f"--key-file={self.folder}/munge.key",
      f"--socket={self.folder}/munge.socket",
      f"--pid-file={self.folder}/munge.pid",
      f"--log-file={self.folder}/munge.log",
      f"--seed-file={self.folder}/munge.seed",
    ]
    self._start("munged", ["munged", "--foreground", *flags])
    self.wait_for("munged", (self.folder / "munge.socket").exists)

  def _start(self, name: str, command: list[str]) -> None:
    with (self.folder / f"{name}.log").open("wb") as log:
      self._processes[name] = subprocess.Popen(
        command,
        cwd=self.folder,
        env=os.environ | self.environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
      )

  def _idle_nodes(self) -> int:
    told = self.ask("sinfo", "--noheader", "--Node", "--states=idle")
    return len(told.splitlines())

  def ask(self, *command: str) -> str:
    """What a command of SLURM prints."""
    ran = subprocess.run(
      command,
      env=os.environ | self.environment,
      capture_output=True,
      text=True,
      check=False,
    )
    return ran.stdout

  def submit(
    self, place: pathlib.Path, script: str, **environment: str
  ) -> subprocess.Popen:
    """Starts a batch job; the process ends with it, with its status."""
    (place / "train.sbatch").write_text(script)
    (place / "train.log").unlink(missing_ok=True)
    programs = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
      ["sbatch", "--quiet", "--wait", "train.sbatch"],
      cwd=place,
      env=os.environ
      | self.environment
      | {"PATH": programs, "PYTHONPATH": str(ROOT)}
      | environment,
      stdin=subprocess.DEVNULL,
    )

  def task(self, number: int) -> int:
    """The process id of a job's task."""
    (found,) = self.processes(f"SLURM_PROCID={number}", "oneshot-dp")
    return found

  def processes(self, variable: str = "", program: str = "") -> list[int]:
    """Ids of the processes of this cluster: those with its configuration."""
    configuration = f"SLURM_CONF={self.environment['SLURM_CONF']}"
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
      try:
        variables = (process / "environ").read_text(errors="replace")
        words = (process / "cmdline").read_text(errors="replace")
      except OSError:
        continue
      variables = variables.split("\0")
      if configuration not in variables or program not in words:
        continue
      if not variable or variable in variables:
        found.append(int(process.name))
    return found

  def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not ready():
      if time.monotonic() > deadline:
        for log in sorted(self.folder.glob("*.log")):
          print(f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}")
        sys.exit(f"SLURM: no {what} after {END_SECONDS} s.")
      time.sleep(0.1)


def check_tools() -> None:
  for tool in ("slurmctld", "slurmd", "munged", "sbatch", "unshare"):
    if shutil.which(tool) is None:
      raise CannotRun(f"there is no {tool} here")
  apart = subprocess.run(["unshare", "--mount", "true"], check=False)
  if os.geteuid() or apart.returncode:
    raise CannotRun("nodes need namespaces of their own, which takes root")


def wait_for_log(job: subprocess.Popen, log: pathlib.Path, text: str) -> str:
  """Waits until a job has printed this, or has ended; returns what it did."""
  deadline = time.monotonic() + JOB_SECONDS
  while time.monotonic() < deadline:
    printed = log.read_text() if log.exists() else ""
    if text in printed or job.poll() is not None:
      return printed
    time.sleep(0.05)
  sys.exit(f"{log.read_text()}\nIt goes on for more than {JOB_SECONDS} s.")


def errors_of(log: str) -> list[str]:
  """Lines that the command itself ended with."""
  return [
    line for line in log.splitlines() if line.startswith("oneshot-dp: error")
  ]


def seeded(cluster: SlurmCluster, place: pathlib.Path) -> str:
  """A head of two hosts, beside one of this process alone."""
  words = SCRIPT.splitlines()[-1].partition(" oneshot-dp ")[2].split()
  words.remove("--hosts")
  words.remove("auto")
  words[words.index("--out") + 1] = "alone"
  environment = os.environ | {"ONESHOT_DP_LEDGER": str(place / "alone.ledger")}
  alone = [*ONESHOT_DP, *words, "--noise-seed", "7"]
  subprocess.run(alone, cwd=place, env=environment, check=True)
  begin = time.monotonic()
  script = SCRIPT.replace(OUT, "--out seeded --noise-seed 7")
  ledger = str(place / "seeded.ledger")
  job = cluster.submit(place, script, ONESHOT_DP_LEDGER=ledger)
  if job.wait(JOB_SECONDS):
    sys.exit(f"{(place / 'train.log').read_text()}\nIt did not run.")
  for name in ("head.safetensors", "releases.safetensors"):
    made = (place / "seeded" / name).read_bytes()
    if made != (place / "alone" / name).read_bytes():
      sys.exit(f"{name}: two hosts of SLURM made other bytes than one.")
  took = time.monotonic() - begin
  return f"two hosts: the bytes of one, {took:.0f} s"


def stopped(
  cluster: SlurmCluster,
  place: pathlib.Path,
  how: str,
  stop: Callable[[], object],
  error: str,
) -> str:
  """A job that is stopped after its charge, and then submitted again."""
  out = how.replace(" ", "-")
  script = SCRIPT.replace(OUT, f"--out {out}")
  ledger = str(place / f"{out}.ledger")
  job = cluster.submit(place, script, ONESHOT_DP_LEDGER=ledger)
  log = place / "train.log"
  printed = wait_for_log(job, log, "epsilon 4 in total")
  if job.poll() is not None:
    sys.exit(f"{printed}\n{how}: it ended too soon.")
  begin = time.monotonic()
  stop()
  status = job.wait(JOB_SECONDS)
  took = time.monotonic() - begin
  printed = log.read_text()
  errors = errors_of(printed)
  if not status or (place / out).exists():
    sys.exit(f"{printed}\n{how}: it went on.")
  if not errors or not all(error in line for line in errors):
    sys.exit(f"{printed}\n{how}: it should end by {error!r}.")
  if "Traceback" in printed:
    sys.exit(f"{printed}\n{how}: a traceback.")
  cluster.wait_for(
    "task that ended", lambda: not cluster.processes("", "train")
  )
  again = cluster.submit(place, script, ONESHOT_DP_LEDGER=ledger)
  if again.wait(JOB_SECONDS):
    sys.exit(f"{log.read_text()}\n{how}: it did not go on.")
  charges = charges_of(place, ledger)
  if len(charges) != 1:
    sys.exit(f"{how}: not one charge, but {charges}.")
  lines = "\n  ".join(sorted(errors))
  return (
    f"{how}: status {status} after {took:.0f} s; submitted again, it finished,"
    f" charged once.\n  {lines}"
  )


def charges_of(place: pathlib.Path, ledger: str) -> list[str]:
  words = ["budget", "--cache", "caches/train", "--ledger", ledger, "--json"]
  ran = subprocess.run(
    [*ONESHOT_DP, *words],
    cwd=place,
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  (dataset,) = json.loads(ran.stdout)["datasets"]
  return [entry["what"] for entry in dataset["entries"]]


def apart(cluster: SlurmCluster, place: pathlib.Path) -> str:
  """A job whose second task never comes: the first says where it waited."""
  waiting = "srun sh -c '[ $SLURM_PROCID = 1 ] || exec \"$@\"' sh "
  script = SCRIPT.replace("srun ", waiting)
  job = cluster.submit(place, script, ONESHOT_DP_JOIN_SECONDS="3")
  status = job.wait(JOB_SECONDS)
  printed = (place / "train.log").read_text()
  errors = errors_of(printed)
  if not status or len(errors) != 1 or " at n0:" not in errors[0]:
    sys.exit(f"{printed}\nIt should say the address of n0.")
  return f"a task that never comes: status {status}.\n  {errors[0]}"


def main() -> None:
  stop_when_told()
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    place.chmod(0o711)  # munged insists on a socket that all can reach.
    write_clusters(place / "caches" / "train", (600, 500, 400, 300), 64)
    (place / "slurm").mkdir()
    try:
      with SlurmCluster(place / "slurm") as cluster:
        print(seeded(cluster, place), flush=True)

        def kill_task() -> None:
          os.kill(cluster.task(1), signal.SIGKILL)

        def cancel() -> None:
          cluster.ask("scancel", "--name=train.sbatch")

        lost = "another host of this run was lost"
        print(stopped(cluster, place, "task killed", kill_task, lost))
        told = stopped(cluster, place, "scancel", cancel, "interrupted")
        print(told, flush=True)
        print(apart(cluster, place), flush=True)
    except CannotRun as reason:
      print(f"SLURM is not tested: {reason}.")


if __name__ == "__main__":
  main()
