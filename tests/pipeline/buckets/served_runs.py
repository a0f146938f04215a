"""Runs into a served bucket: made, killed, and compared with what was put."""

import json
import secrets

from oneshot_dp.pipeline.ledger.bucket_output import work_folder_of
from oneshot_dp.pipeline.ledger.delivery import Delivery, find_heads
from tests.pipeline.sample_heads import make_charge_request

PUT_IN_ORDER = (
  "heads/1/head.safetensors",
  "heads/of/2/head.safetensors",
  "results.csv",
  "heads/1/receipt.json",
  "heads/of/2/receipt.json",
  "results.json",
)


PROBE = ".oneshot-dp-write-test"


def write(folder, charge_ids):
  """A run of two heads of random bytes, as noise is."""
  for name in "heads/1", "heads/of/2":
    head = folder / name
    head.mkdir(parents=True)
    (head / "head.safetensors").write_bytes(secrets.token_bytes(16))
    receipt = json.dumps({"stated": {"charge": charge_ids[0]}, "head": name})
    (head / "receipt.json").write_text(receipt)
  (folder / "results.csv").write_text(secrets.token_hex())
  (folder / "results.json").write_text(secrets.token_hex())


def refuse_to_train(folder, charge_ids):
  raise AssertionError("what was noted is shown as it is")


def run(ledger, out, train=write):
  requests = [make_charge_request(1.0)]
  with Delivery(out, ledger, requests, identity={}) as delivery:
    delivery.open()
    if not delivery.already_done:
      train(delivery.folder, delivery.charge_ids)
    delivery.commit()


def objects_of(server):
  """The objects of the run by their names in it."""
  prefix = "runs/1/"
  objects = {}
  for name, content in server.objects.items():
    if name.startswith(prefix):
      objects[name.removeprefix(prefix)] = content
  return objects


def files_of(folder):
  contents = {}
  for path in folder.rglob("*"):
    if path.is_file():
      contents[path.relative_to(folder).as_posix()] = path.read_bytes()
  return contents


class Recorder:
  """Trains, and keeps what it wrote."""

  def __init__(self):
    self.files = {}

  def __call__(self, folder, charge_ids):
    write(folder, charge_ids)
    self.files = files_of(folder)


def check_whole(server, ledger, out):
  """One charge, the noted heads, and nothing beside ledger and objects."""
  assert len(ledger.entries("pets")) == 1
  assert set(objects_of(server)) == set(PUT_IN_ORDER)
  assert ledger.heads() == find_heads(out)
  assert len(ledger.heads()) == 2
  assert not work_folder_of(out, ledger.path).exists()


class Killed(BaseException):
  """In place of SIGKILL: nothing of ours runs after it."""


def kill_at(patch, owner, name, call, *, after):
  """The run ends just before, or just after, a call, counted from 0."""
  function = vars(owner)[name]
  calls = []

  def counted(*arguments, **options):
    calls.append(name)
    if len(calls) <= call:
      return function(*arguments, **options)
    if after:
      function(*arguments, **options)
    raise Killed

  patch.setattr(owner, name, counted)
