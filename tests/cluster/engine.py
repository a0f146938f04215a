"""An engine on this machine: its jars, its processes and its workers.

The jars of an engine come from Maven by their coordinates (pom.xml, spark.xml).
Beside each of the engine's workers is a pool of Python workers, as on hosts of
their own. flink.py and spark.py say what an engine's processes are.
"""

import abc
import dataclasses
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import zipfile
from typing import ClassVar, Self

from tests.cluster.processes import (
  HERE,
  OPENS,
  ROOT,
  CannotRun,
  Processes,
  kill_servers_of,
)


@dataclasses.dataclass(frozen=True)
class Engine:
  """What Maven has of an engine.

  Attributes:
    name: the name of the folder of its jars.
    pom: the list for Maven, a file beside this one.
    jars_sha256: of the lines that `sha256sum` prints of the jars.
    job_server_class: the class that runs Beam's job server.
  """

  name: str
  pom: str
  jars_sha256: str
  job_server_class: str

  @property
  def jars(self) -> pathlib.Path:
    return ROOT / "build" / self.name

  def fetch(self) -> None:
    """Puts the jars into their folder, and checks that it is those."""
    for tool in "java", "mvn":
      if shutil.which(tool) is None:
        raise CannotRun(f"there is no {tool} here")
    if not self.jars.is_dir():
      self._run_maven()
    found = hashlib.sha256()
    for jar in sorted(self.jars.glob("*.jar")):
      digest = hashlib.sha256(jar.read_bytes()).hexdigest()
      found.update(f"{digest}  {jar.name}\n".encode())
    if found.hexdigest() != self.jars_sha256:
      raise SystemExit(
        f"{self.jars}: the SHA-256 of its list of jars is {found.hexdigest()},"
        f" not {self.jars_sha256}; delete it, and look at what Maven fetches."
      )

  def _run_maven(self) -> None:
    fetched = subprocess.run(
      [
        *("mvn", "--batch-mode", "--quiet", "--strict-checksums"),
        *("--file", HERE / self.pom, "dependency:copy-dependencies"),
        f"-DoutputDirectory={self.jars}.new",
      ],
      capture_output=True,
      text=True,
      timeout=600,
    )
    if fetched.returncode:
      reason = fetched.stdout.partition("[ERROR] ")[2].partition("\n")[0]
      raise CannotRun(f"Maven cannot fetch the jars: {reason[:200]}")
    os.replace(f"{self.jars}.new", self.jars)

  @functools.cached_property
  def job_server_jar(self) -> pathlib.Path:
    """A job server that `java -jar` starts, written when it is first asked for.

    Beam publishes each server with all that it needs in one jar, which could
    not be had here. This is a jar that names the jars that it is made of.
    """
    self.fetch()
    servers = ROOT / "build" / "job_servers"
    servers.mkdir(parents=True, exist_ok=True)
    path = servers / f"{self.name}.jar"
    class_path = " ".join(
      jar.as_uri() for jar in sorted(self.jars.glob("*.jar"))
    )
    lines = ["Manifest-Version: 1.0", f"Main-Class: {self.job_server_class}"]
    lines += [f"Add-Opens: {' '.join(OPENS)}", f"Class-Path: {class_path}"]
    manifest = ""
    for line in lines:
      # A line has 72 bytes at most; one that begins with a space goes on.
      pieces = [line[i : i + 70] for i in range(0, len(line), 70)]
      manifest += "\n ".join(pieces) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
      archive.writestr("META-INF/MANIFEST.MF", manifest)
    return path


class EngineCluster(Processes, abc.ABC):
  """An engine that is started whole, and ends whole.

  Attributes:
    ENGINE: what Maven has of it.
    WORKERS: how many workers it has.
    VICTIMS: kinds of processes that `replace` kills.
  """

  ENGINE: ClassVar[Engine]
  WORKERS: ClassVar[int]
  VICTIMS: ClassVar[tuple[str, ...]]

  def __enter__(self) -> Self:
    self.ENGINE.fetch()
    try:
      self.start_master()
      self.start_job_server()
      for number in range(self.WORKERS):
        self.start_worker(number)
      self.wait_for_workers()
    except BaseException:
      self.__exit__()
      raise
    return self

  @property
  @abc.abstractmethod
  def flags(self) -> list[str]:
    """What `oneshot-dp extract` needs to run here."""

  @abc.abstractmethod
  def start_master(self) -> None:
    """Starts the process that gives the workers their tasks."""

  def start_job_server(self) -> None:
    """Nothing: each command starts its own."""

  def kill_job_server(self) -> None:
    """SIGKILL to the job server of the command that runs."""
    kill_servers_of(self.ENGINE.job_server_jar)

  @abc.abstractmethod
  def start_worker(self, number: int) -> None:
    """Starts a worker, and the pool that is "pool" to it."""

  @abc.abstractmethod
  def num_workers(self) -> int:
    """How many workers the engine says that it has."""

  def wait_for_workers(self) -> None:
    def there() -> bool:
      try:
        return self.num_workers() == self.WORKERS
      except (OSError, ValueError):
        return False

    self.wait("the workers", there)

  @abc.abstractmethod
  def replace(self, victim: str, number: int) -> None:
    """SIGKILL to a worker, or to a part of it; a new one in its place."""

  @abc.abstractmethod
  def busy(self) -> set[int]:
    """The workers on which a task of a job runs, as the engine says."""

  @abc.abstractmethod
  def running(self) -> list[str]:
    """Ids of the jobs that have not ended."""

  @abc.abstractmethod
  def losses(self) -> int:
    """How often the engine's log says that a job has lost a worker."""
