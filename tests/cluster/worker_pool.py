"""Runs the pool's command of extract/Dockerfile on one address instead of all.

On hosts of their own each has its address; here several pools share a machine.
"""

import runpy
import sys

import grpc


def on_one_address(*args, make=grpc.server, **options):
  server = make(*args, **options)
  listen = server.add_insecure_port
  here = sys.argv[1]
  server.add_insecure_port = lambda address: listen(
    address.replace("[::]", here)
  )
  return server


if __name__ == "__main__":
  grpc.server = on_one_address
  _, _, _, module, *flags = sys.argv  # … ADDRESS -m MODULE --service_port=PORT
  sys.argv = [module, sys.argv[1], *flags]
  runpy.run_module(module, run_name="__main__")
