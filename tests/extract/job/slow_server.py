"""A command whose job server takes for ever to start, as one of Java seems to.

    python -m tests.extract.job.slow_server

Prints the process id of what it started.
"""

import subprocess
import time

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.portable_runner import PortableRunner

from oneshot_dp.extract.job.job_server import job_server


class SlowServer:
  def start(self) -> None:
    server = subprocess.Popen(["sleep", "600"])
    print(server.pid, flush=True)
    time.sleep(600)


class SlowRunner(PortableRunner):
  def default_job_server(self, options) -> SlowServer:
    return SlowServer()


if __name__ == "__main__":
  with job_server(SlowRunner(), PipelineOptions()):
    pass
