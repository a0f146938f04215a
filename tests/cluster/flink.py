"""A Flink cluster on this machine: separate JVMs, and a worker pool for each.

One JobManager, three TaskManagers of one slot with a Python worker pool beside
each, and Beam's Flink job server. A job of parallelism 2 has work on two, and
the third is the spare. Needs Java 11 or 17, and Maven, which fetches Flink and
Beam's part of it (pom.xml). What is tested with it is in kills.py.
"""

import json
import pathlib
import urllib.request
from typing import Any

from tests.cluster.engine import Engine, EngineCluster
from tests.cluster.processes import OUR_POOL, QUICK_JAVA, free_port, listens

FLINK = Engine(
  name="flink",
  pom="pom.xml",
  jars_sha256="d48aa836447648803693560de9fa84be15fa7f9c408f3ee20b6cd6d4da4f16f6",
  job_server_class="org.apache.beam.runners.flink.FlinkJobServerDriver",
)
PARALLELISM = 2
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
  # A TaskManager that is up before the JobManager soon asks again.
  "cluster.registration.error-delay": 1000,
  # Whatever dies is noticed soon.
  "heartbeat.interval": 1000,
  "heartbeat.timeout": 6000,
  # Without these a batch job fails with the first worker that does.
  "restart-strategy.type": "fixed-delay",
  "restart-strategy.fixed-delay.attempts": 5,
  "restart-strategy.fixed-delay.delay": "2 s",
}


class FlinkRunnerCluster(EngineCluster):
  """JobManager, and TaskManagers with their pools."""

  ENGINE = FLINK
  WORKERS = 3
  VICTIMS = ("TaskManager",)

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder)
    self._rest_port = free_port()
    self._rpc_port = free_port()

  @property
  def flags(self) -> list[str]:
    """What `oneshot-dp extract` needs to run here."""
    flags = [
      *("--runner=FlinkRunner", f"--flink_master=127.0.0.1:{self._rest_port}"),
      f"--flink_job_server_jar={FLINK.job_server_jar}",
      *(f"--parallelism={PARALLELISM}", *OUR_POOL),
    ]
    for option in QUICK_JAVA:
      flags.append(f"--job_server_jvm_properties={option}")
    return flags

  def start_master(self) -> None:
    conf = self.folder / "conf"
    conf.mkdir(parents=True)
    settings = SETTINGS | {
      "jobmanager.rpc.port": self._rpc_port,
      "rest.port": self._rest_port,
    }
    text = "".join(f"{k}: {v}\n" for k, v in settings.items())
    (conf / "flink-conf.yaml").write_text(text)
    self.start_java(
      "jobmanager",
      FLINK.jars,
      "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
      ["--configDir", conf, "--executionMode", "cluster"],
    )

  def num_workers(self) -> int:
    return self.rest("/overview")["taskmanagers"]

  def start_worker(self, number: int) -> None:
    """Starts a TaskManager, and the worker pool that is "pool" to it."""
    finds_pool = self.start_pool(number)
    self.start_java(
      f"taskmanager{number}",
      FLINK.jars,
      "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
      [
        *("--configDir", self.folder / "conf"),
        f"-Dtaskmanager.resource-id=tm{number}-{free_port()}",
      ],
      JAVA_TOOL_OPTIONS=finds_pool,
    )

  def replace(self, victim: str, number: int) -> None:
    """SIGKILL to a TaskManager, its pool and the pool's workers; new ones."""
    del victim
    self.kill(f"taskmanager{number}")
    self.kill(f"pool{number}")
    self.start_worker(number)

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

  def losses(self) -> int:
    """How often the JobManager's log says that a job is started again."""
    return self.log("jobmanager").count("from state RUNNING to RESTARTING")

  def rest(self, path: str) -> Any:
    url = f"http://127.0.0.1:{self._rest_port}{path}"
    with urllib.request.urlopen(url, timeout=60) as answer:
      return json.load(answer)


class FlinkCluster(FlinkRunnerCluster):
  """The same with a job server that runs already."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder)
    self._job_port = free_port()

  @property
  def flags(self) -> list[str]:
    endpoint = f"--job_endpoint=localhost:{self._job_port}"
    parallelism = f"--parallelism={PARALLELISM}"
    return ["--runner=PortableRunner", endpoint, parallelism, *OUR_POOL]

  def start_job_server(self) -> None:
    self.start_java(
      "jobserver",
      FLINK.jars,
      FLINK.job_server_class,
      [
        *("--job-host", "localhost", "--job-port", self._job_port),
        *("--artifact-port", 0, "--expansion-port", 0),
        f"--flink-master=127.0.0.1:{self._rest_port}",
        f"--artifacts-dir={self.folder / 'artifacts'}",
      ],
    )
    self.wait("the job server", lambda: listens(self._job_port))

  def kill_job_server(self) -> None:
    self.kill("jobserver")
