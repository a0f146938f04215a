"""A Spark cluster on this machine: separate JVMs, and a worker pool for each.

A standalone Master and two Workers of one core, each of which starts an
executor for a job; beside each Worker a pool of Python workers. The job server
that `--runner=SparkRunner` starts is the driver. Needs Java 17, and Maven,
which fetches Spark and what Beam has for it (spark.xml). What is tested with it
is in kills.py.
"""

import json
import os
import pathlib
import signal
import urllib.request
from typing import Any, Self

from tests.cluster.processes import (
  HERE,
  OUR_POOL,
  ROOT,
  Processes,
  fetch,
  free_port,
  job_server_jar,
  kill_servers_of,
)

JARS = ROOT / "build" / "spark"
JARS_SHA256 = "a7d085e6f7510f47cb14e782f16e9c8b1c8a77b23a13e061f4cc8acfecec34bd"
JOB_SERVER = "org.apache.beam.runners.spark.SparkJobServerDriver"
WORKERS = 2
EXECUTOR_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
LOSSES = ("Removing executor ", "Telling app of lost executor")
"""How the Master says that an executor, or its Worker, was lost."""


def fetch_jars() -> None:
  """Puts the jars of spark.xml into `JARS`, and checks that it is those."""
  fetch(HERE / "spark.xml", JARS, JARS_SHA256)


def runner_jar() -> pathlib.Path:
  """The job server that SparkRunner starts."""
  fetch_jars()
  return job_server_jar("spark", JARS, JOB_SERVER)


class SparkCluster(Processes):
  """Master, and Workers with their executors and pools."""

  VICTIMS = ("executor", "Worker")

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder)
    self._port = free_port()
    self._page = free_port()
    self._driver_page = free_port()
    # A Worker finds Spark for its executors in a folder with a folder of jars.
    self._environment = {
      "SPARK_HOME": str(folder / "home"),
      "SPARK_LOCAL_IP": "127.0.0.1",
      "SPARK_LOCAL_DIRS": str(folder / "local"),
      "SPARK_SCALA_VERSION": "2.12",
    }

  def __enter__(self) -> Self:
    fetch_jars()
    (self.folder / "home").mkdir(parents=True)
    (self.folder / "home" / "jars").symlink_to(JARS)
    try:
      self.start_java(
        "master",
        JARS,
        "org.apache.spark.deploy.master.Master",
        [
          *("--host", "127.0.0.1", "--port", self._port),
          *("--webui-port", self._page),
        ],
        **self._environment,
      )
      for number in range(WORKERS):
        self.start_worker(number)
      self.wait_for_workers()
    except BaseException:
      self.__exit__()
      raise
    return self

  @property
  def flags(self) -> list[str]:
    """What `oneshot-dp extract` needs to run here."""
    properties = {
      "spark.ui.port": self._driver_page,
      "spark.driver.host": "127.0.0.1",
      "spark.driver.bindAddress": "127.0.0.1",
    }
    flags = []
    for name, value in properties.items():
      flags.append(f"--job_server_jvm_properties=-D{name}={value}")
    return [
      *("--runner=SparkRunner", f"--spark_job_server_jar={runner_jar()}"),
      f"--spark_master_url=spark://127.0.0.1:{self._port}",
      *(*flags, *OUR_POOL),
    ]

  def start_job_server(self) -> None:
    """Nothing: each command starts its own."""

  def kill_job_server(self) -> None:
    kill_servers_of(runner_jar())

  def wait_for_workers(self) -> None:
    def there() -> bool:
      try:
        return self._master()["aliveworkers"] == WORKERS
      except (OSError, ValueError):
        return False

    self.wait("the Workers", there)

  def start_worker(self, number: int) -> None:
    """Starts a Worker, and the worker pool that is "pool" to its executors."""
    finds_pool = self.start_pool(number)
    self.start_java(
      f"worker{number}",
      JARS,
      "org.apache.spark.deploy.worker.Worker",
      [
        *("--host", "127.0.0.1", "--webui-port", 0),
        # An executor asks for as much as a GB, if it is not told otherwise.
        *("--cores", 1, "--memory", "1g"),
        *("--work-dir", self.folder / f"work{number}"),
        f"spark://127.0.0.1:{self._port}",
      ],
      JAVA_TOOL_OPTIONS=f"{finds_pool} {EXECUTOR_JAVA}",
      **self._environment,
    )

  def replace(self, victim: str, number: int) -> None:
    """SIGKILL to an executor, or to a Worker with all that is beside it.

    Of an executor that ends its Worker starts another; a new Worker is started
    here.
    """
    if victim == "executor":
      for process in self._executors(number):
        os.kill(process, signal.SIGKILL)
    else:
      self.kill(f"worker{number}")
      self.kill(f"pool{number}")
      self.start_worker(number)

  def _executors(self, number: int) -> dict[int, str]:
    """Executors of a Worker: the number that Spark gave to each process."""
    worker = self.process_id(f"worker{number}")
    found = {}
    for file in pathlib.Path(f"/proc/{worker}/task").glob("*/children"):
      for process in file.read_text().split():
        words = pathlib.Path(f"/proc/{process}/cmdline").read_text().split("\0")
        if "--executor-id" in words:
          found[int(process)] = words[words.index("--executor-id") + 1]
    return found

  def busy(self) -> set[int]:
    """The Workers whose executors have a task, as the driver says."""
    page = f"http://127.0.0.1:{self._driver_page}/api/v1/applications"
    (job,) = _read(page)
    busy = set()
    for executor in _read(f"{page}/{job['id']}/executors"):
      if executor["activeTasks"]:
        busy.add(executor["id"])
    workers = set()
    for number in range(WORKERS):
      if busy.intersection(self._executors(number).values()):
        workers.add(number)
    return workers

  def running(self) -> list[str]:
    """Ids of the jobs that have not ended."""
    return [job["id"] for job in self._master()["activeapps"]]

  def losses(self) -> int:
    """How often the Master's log says that a job has lost an executor."""
    log = self.log("master")
    return sum(log.count(words) for words in LOSSES)

  def _master(self) -> Any:
    return _read(f"http://127.0.0.1:{self._page}/json/")


def _read(url: str) -> Any:
  # The driver's page takes some seconds when it is first asked.
  with urllib.request.urlopen(url, timeout=60) as answer:
    return json.load(answer)
