"""Beam's worker pool on one address: of several pools, each has its own.

On hosts of their own Beam's command does, which listens on all addresses:
`python -m apache_beam.runners.worker.worker_pool_main --service_port 50000`.
"""

import sys
import threading
from concurrent import futures

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_pool_main import (
  BeamFnExternalWorkerPoolServicer,
)

if __name__ == "__main__":
  server = grpc.server(futures.ThreadPoolExecutor(8))
  beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(
    BeamFnExternalWorkerPoolServicer(use_process=True), server
  )
  if not server.add_insecure_port(sys.argv[1]):
    sys.exit(f"{sys.argv[1]} cannot be listened on")
  server.start()
  threading.Event().wait()
