"""Processes of an engine on this machine: they start, are killed, and end.

An engine's worker has a pool of Python workers beside it, as on hosts of their
own: each has its address, and "pool" is another one to each.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
ONESHOT_DP = [sys.executable, "-m", "oneshot_dp"]
# As the image of workers starts its pool: -m MODULE --service_port=PORT
_IMAGE = (ROOT / "extract" / "Dockerfile").read_text()
POOL = _IMAGE.partition('LABEL pool="python ')[2].partition('"')[0].split()
OUR_POOL = [
  "--environment_type=EXTERNAL",
  f"--environment_config=pool:{POOL[-1].partition('=')[2]}",
]
"""What tells an engine's worker to ask the pool beside it for Python."""
OPENS = [
  f"java.base/{package}"
  for package in (
    *("java.lang", "java.lang.invoke", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "sun.nio.ch"),
  )
]
"""Packages of Java 17 that engines want to look into."""
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For JVMs that live for minutes: one thread collects, little is optimized."""


class CannotRun(Exception):
  """Why there is no cluster here."""


def servers_of(path: pathlib.Path) -> list[int]:
  """Ids of the processes whose command line has the server's path."""
  found = []
  for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
      words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
      continue
    # The command itself has the path within a flag.
    if str(path).encode() in words:
      found.append(int(process.name))
  return found


def kill_servers_of(path: pathlib.Path) -> None:
  for server in servers_of(path):
    with contextlib.suppress(ProcessLookupError):
      os.kill(server, signal.SIGKILL)


class Processes:
  """Processes with names, each in a group of its own; logs in `folder`."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._processes: dict[str, subprocess.Popen] = {}

  def __exit__(self, *_: object) -> None:
    for name in list(self._processes):
      self.kill(name)

  def start(self, name: str, command: list[object], **environment: str) -> None:
    with (self.folder / f"{name}.log").open("ab") as log:
      self._processes[name] = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | environment,
        start_new_session=True,
      )

  def start_java(
    self,
    name: str,
    jars: pathlib.Path,
    main: str,
    words: Sequence[object],
    **environment: str,
  ) -> None:
    """Starts a class of some jars; Java knows of "pool" what `hosts` says."""
    opens = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
    logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"
    command = [
      "java",
      "-Xmx256m",
      *QUICK_JAVA,
      *opens,
      logs,
      "-cp",
      f"{jars}/*",
      main,
      *words,
    ]
    self.start(name, command, **environment)

  def start_pool(self, number: int) -> str:
    """Starts a pool of Python workers; returns the option that lets a JVM
    find it as "pool"."""
    address = f"127.0.1.{number + 1}"
    hosts = self.folder / f"hosts{number}"
    here = f"127.0.0.1 localhost {socket.gethostname()}"
    hosts.write_text(f"{here}\n{address} pool\n")
    python = pathlib.Path(sys.executable)
    self.start(
      f"pool{number}",
      [python, HERE / "worker_pool.py", address, *POOL],
      # The pool starts any "python" that it finds.
      PATH=f"{python.parent}:{os.environ['PATH']}",
      PYTHONPATH=str(ROOT),
    )
    return f"-Djdk.net.hosts.file={hosts}"

  def process_id(self, name: str) -> int:
    return self._processes[name].pid

  def log(self, name: str) -> str:
    return (self.folder / f"{name}.log").read_text(errors="replace")

  def kill(self, name: str) -> None:
    """SIGKILL to a process and to all that it started in its group."""
    process = self._processes.pop(name)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()

  def wait(self, what: str, ready: Callable[[], bool], seconds: float = 300):
    deadline = time.monotonic() + seconds
    while not ready():
      for name, process in self._processes.items():
        if process.poll() is not None:
          raise SystemExit(f"{name} ended:\n{self.log(name)[-3000:]}")
      if time.monotonic() > deadline:
        raise SystemExit(f"{what}: not there after {seconds} s")
      time.sleep(0.3)


def free_port() -> int:
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]


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
