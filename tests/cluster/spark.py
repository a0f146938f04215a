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
from typing import Any

from tests.cluster.engine import Engine, EngineCluster
from tests.cluster.processes import OUR_POOL, QUICK_JAVA, free_port

SPARK = Engine(
  name="spark",
  pom="spark.xml",
  jars_sha256="a7d085e6f7510f47cb14e782f16e9c8b1c8a77b23a13e061f4cc8acfecec34bd",
  job_server_class="org.apache.beam.runners.spark.SparkJobServerDriver",
)
LOSSES = ("Removing executor ", "Telling app of lost executor")
"""How the Master says that an executor, or its Worker, was lost."""


class SparkCluster(EngineCluster):
  """Master, and Workers with their executors and pools."""

  ENGINE = SPARK
  WORKERS = 2
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

  @property
  def flags(self) -> list[str]:
    """What `oneshot-dp extract` needs to run here."""
    jar = SPARK.job_server_jar
    options = [
      f"-Dspark.ui.port={self._driver_page}",
      "-Dspark.driver.host=127.0.0.1",
      "-Dspark.driver.bindAddress=127.0.0.1",
      *QUICK_JAVA,
    ]
    flags = [
      *("--runner=SparkRunner", f"--spark_job_server_jar={jar}"),
      f"--spark_master_url=spark://127.0.0.1:{self._port}",
      # Executors have Beam's jars in Spark's folder. Without this the driver
      # hands all of its own, some 240, to each that starts.
      *(f"--files_to_stage={jar}", *OUR_POOL),
    ]
    for option in options:
      flags.append(f"--job_server_jvm_properties={option}")
    return flags

  def start_master(self) -> None:
    (self.folder / "home").mkdir(parents=True)
    (self.folder / "home" / "jars").symlink_to(SPARK.jars)
    self.start_java(
      "master",
      SPARK.jars,
      "org.apache.spark.deploy.master.Master",
      [
        *("--host", "127.0.0.1", "--port", self._port),
        *("--webui-port", self._page),
      ],
      **self._environment,
    )

  def num_workers(self) -> int:
    return self._master()["aliveworkers"]

  def start_worker(self, number: int) -> None:
    """Starts a Worker, and the worker pool that is "pool" to its executors."""
    finds_pool = self.start_pool(number)
    self.start_java(
      f"worker{number}",
      SPARK.jars,
      "org.apache.spark.deploy.worker.Worker",
      [
        *("--host", "127.0.0.1", "--webui-port", 0),
        # An executor asks for as much as a GB, if it is not told otherwise.
        *("--cores", 1, "--memory", "1g"),
        *("--work-dir", self.folder / f"work{number}"),
        f"spark://127.0.0.1:{self._port}",
      ],
      JAVA_TOOL_OPTIONS=f"{finds_pool} {' '.join(QUICK_JAVA)}",
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
    for number in range(self.WORKERS):
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
