"""A Flink cluster on this machine: separate JVMs, and a worker pool for each.

One JobManager, three TaskManagers of one slot with a Python worker pool beside
each, and Beam's Flink job server. A job of parallelism 2 has work on two, and
the third is the spare. Needs Java 11 or 17, and Maven, which fetches Flink and
Beam's part of it (pom.xml). What is tested with it is in kills.py.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Self

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
JARS = ROOT / "build" / "flink"
JARS_SHA256 = "d48aa836447648803693560de9fa84be15fa7f9c408f3ee20b6cd6d4da4f16f6"
TASK_MANAGERS = 3
PARALLELISM = 2
ONESHOT_DP = [sys.executable, "-m", "oneshot_dp"]
# As the image of workers starts its pool: -m MODULE --service_port=PORT
_IMAGE = (ROOT / "extract" / "Dockerfile").read_text()
POOL = _IMAGE.partition('LABEL pool="python ')[2].partition('"')[0].split()
_OPENS = [
  f"--add-opens=java.base/java.{package}=ALL-UNNAMED"
  for package in ("lang", "net", "nio", "util", "util.concurrent")
]
SETTINGS = {
  "jobmanager.rpc.address": "127.0.0.1",
  "jobmanager.bind-host": "127.0.0.1",
  "rest.address": "127.0.0.1",
  "rest.bind-address": "127.0.0.1",
  "taskmanager.host": "127.0.0.1",
  "taskmanager.bind-host": "127.0.0.1",
  "taskmanager.numberOfTaskSlots": 1,
  "taskmanager.cpu.cores": 1.0,
  "taskmanager.memory.framework.heap.size": "64m",
  "taskmanager.memory.framework.off-heap.size": "64m",
  "taskmanager.memory.jvm-metaspace.size": "192m",
  "taskmanager.memory.jvm-overhead.min": "64m",
  "taskmanager.memory.jvm-overhead.max": "64m",
  "taskmanager.memory.task.heap.size": "128m",
  "taskmanager.memory.task.off-heap.size": "0",
  "taskmanager.memory.network.min": "32m",
  "taskmanager.memory.network.max": "32m",
  "taskmanager.memory.managed.size": "32m",
  # Whatever dies is noticed soon.
  "heartbeat.interval": 1000,
  "heartbeat.timeout": 6000,
  # Without these a batch job fails with the first worker that does.
  "restart-strategy.type": "fixed-delay",
  "restart-strategy.fixed-delay.attempts": 5,
  "restart-strategy.fixed-delay.delay": "2 s",
}


class CannotRun(Exception):
  """Why there is no cluster here."""


def fetch_jars() -> None:
  """Puts the jars of pom.xml into `JARS`, and checks that it is those."""
  fetch(HERE / "pom.xml", JARS, JARS_SHA256)


def fetch(pom: pathlib.Path, jars: pathlib.Path, jars_sha256: str) -> None:
  """Puts the jars of a list for Maven into a folder, if they are not there.

  `jars_sha256` is of the lines that `sha256sum` prints of them.
  """
  for tool in "java", "mvn":
    if shutil.which(tool) is None:
      raise CannotRun(f"there is no {tool} here")
  if not jars.is_dir():
    fetched = subprocess.run(
      [
        *("mvn", "--batch-mode", "--quiet", "--strict-checksums"),
        *("--file", pom, "dependency:copy-dependencies"),
        f"-DoutputDirectory={jars}.new",
      ],
      capture_output=True,
      text=True,
      timeout=600,
    )
    if fetched.returncode:
      reason = fetched.stdout.partition("[ERROR] ")[2].partition("\n")[0]
      raise CannotRun(f"Maven cannot fetch the jars: {reason[:200]}")
    os.replace(f"{jars}.new", jars)
  found = hashlib.sha256()
  for jar in sorted(jars.glob("*.jar")):
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()
    found.update(f"{digest}  {jar.name}\n".encode())
  if found.hexdigest() != jars_sha256:
    raise SystemExit(
      f"{jars}: the SHA-256 of its list of jars is {found.hexdigest()}, not"
      f" {jars_sha256}; delete it, and look at what Maven fetches."
    )


def free_port() -> int:
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]


@dataclasses.dataclass
class FlinkCluster:
  """JobManager, TaskManagers with their pools, job server; logs in `folder`."""

  folder: pathlib.Path

  def __post_init__(self) -> None:
    self._processes: dict[str, subprocess.Popen] = {}
    self._rest, self._rpc, self._jobs = (free_port() for _ in range(3))

  def __enter__(self) -> Self:
    conf = self.folder / "conf"
    conf.mkdir(parents=True)
    ports = {"jobmanager.rpc.port": self._rpc, "rest.port": self._rest}
    text = "".join(f"{k}: {v}\n" for k, v in (SETTINGS | ports).items())
    (conf / "flink-conf.yaml").write_text(text)
    try:
      self._java(
        "jobmanager",
        "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
        *("--configDir", conf, "--executionMode", "cluster"),
      )
      self.start_job_server()
      for number in range(TASK_MANAGERS):
        self.start_worker(number)
      self.wait_for_workers()
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *_: object) -> None:
    for name in list(self._processes):
      self.kill(name)

  def start_job_server(self) -> None:
    self._java(
      "jobserver",
      "org.apache.beam.runners.flink.FlinkJobServerDriver",
      *("--job-host", "localhost", "--job-port", self._jobs),
      *("--artifact-port", 0, "--expansion-port", 0),
      f"--flink-master=127.0.0.1:{self._rest}",
      f"--artifacts-dir={self.folder / 'artifacts'}",
    )
    self.wait("the job server", lambda: listens(self._jobs))

  def wait_for_workers(self) -> None:
    def there() -> bool:
      try:
        return self.rest("/overview")["taskmanagers"] == TASK_MANAGERS
      except (OSError, ValueError):
        return False

    self.wait("the TaskManagers", there)

  @property
  def flags(self) -> list[str]:
    """What `oneshot-dp extract` needs to run here."""
    return [
      *("--runner=PortableRunner", f"--job_endpoint=localhost:{self._jobs}"),
      *("--environment_type=EXTERNAL", f"--parallelism={PARALLELISM}"),
      f"--environment_config=pool:{POOL[-1].partition('=')[2]}",
    ]

  def start_worker(self, number: int) -> None:
    """Starts a TaskManager, and the worker pool that is "pool" to it."""
    address = f"127.0.1.{number + 1}"
    hosts = self.folder / f"hosts{number}"
    here = f"127.0.0.1 localhost {socket.gethostname()}"
    hosts.write_text(f"{here}\n{address} pool\n")
    python = pathlib.Path(sys.executable)
    self._start(
      f"pool{number}",
      [python, HERE / "worker_pool.py", address, *POOL],
      # The pool starts any "python" that it finds.
      PATH=f"{python.parent}:{os.environ['PATH']}",
      PYTHONPATH=str(ROOT),
    )
    self._java(
      f"taskmanager{number}",
      "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
      *("--configDir", self.folder / "conf"),
      f"-Dtaskmanager.resource-id=tm{number}-{free_port()}",
      options=[f"-Djdk.net.hosts.file={hosts}"],
    )

  def kill_worker(self, number: int) -> None:
    """SIGKILL to a TaskManager, its pool and the pool's workers."""
    self.kill(f"taskmanager{number}")
    self.kill(f"pool{number}")

  def busy(self) -> set[int]:
    """The TaskManagers on which a task of a job runs, as Flink says."""
    found = set()
    for job in self.running():
      for vertex in self.rest(f"/jobs/{job}")["vertices"]:
        path = f"/jobs/{job}/vertices/{vertex['id']}/taskmanagers"
        for manager in self.rest(path)["taskmanagers"]:
          if manager["status-counts"]["RUNNING"]:
            name = manager["taskmanager-id"]
            found.add(int(name.removeprefix("tm").partition("-")[0]))
    return found

  def running(self) -> list[str]:
    """Ids of the jobs that have not ended."""
    ended = ("FINISHED", "CANCELED", "FAILED")
    jobs = self.rest("/jobs")["jobs"]
    return [job["id"] for job in jobs if job["status"] not in ended]

  def restarts(self) -> int:
    """How often the JobManager's log says that a job is started again."""
    log = (self.folder / "jobmanager.log").read_text(errors="replace")
    return log.count("from state RUNNING to RESTARTING")

  def rest(self, path: str) -> Any:
    url = f"http://127.0.0.1:{self._rest}{path}"
    with urllib.request.urlopen(url, timeout=5) as answer:
      return json.load(answer)

  def _java(
    self, name: str, main: str, *words: object, options: Sequence[str] = ()
  ) -> None:
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"
    command = [*java, *_OPENS, logs, *options, "-cp", f"{JARS}/*", main, *words]
    self._start(name, command)

  def _start(self, name: str, command: list[object], **environment: str):
    with (self.folder / f"{name}.log").open("ab") as log:
      self._processes[name] = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | environment,
        start_new_session=True,
      )

  def kill(self, name: str) -> None:
    process = self._processes.pop(name)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()

  def wait(self, what: str, ready: Callable[[], bool], seconds: float = 120):
    deadline = time.monotonic() + seconds
    while not ready():
      for name, process in self._processes.items():
        if process.poll() is not None:
          log = (self.folder / f"{name}.log").read_text(errors="replace")
          raise SystemExit(f"{name} ended:\n{log[-3000:]}")
      if time.monotonic() > deadline:
        raise SystemExit(f"{what}: not there after {seconds} s")
      time.sleep(0.3)


def listens(port: int) -> bool:
  with (
    contextlib.suppress(OSError),
    socket.create_connection(("localhost", port), timeout=1),
  ):
    return True
  return False


def stop_when_told() -> None:
  """Makes SIGTERM end the processes too, as Ctrl-C does, also in a script."""
  # A shell's background job ignores it, and so would all that it starts.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
