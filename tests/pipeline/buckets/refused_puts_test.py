"""What a bucket refuses or loses is found, and put by the same command."""

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.pipeline.ledger.bucket_output import work_folder_of
from tests.pipeline.buckets.served_runs import (
  PUT_IN_ORDER,
  Recorder,
  check_whole,
  objects_of,
  refuse_to_train,
  run,
)

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  ("request_kind", "permission"),
  [
    ("PUT", "s3:PutObject"),
    ("POST", "s3:DeleteObject"),
    ("LIST", "s3:ListBucket"),
    ("HEAD", "s3:GetObject"),
  ],
)
def test_a_permission_that_lacks_is_found_before_the_charge(
  ledger, s3_out, server, request_kind, permission
):
  server.fault = lambda kind: 403 if kind == request_kind else None

  with pytest.raises(InputError, match=f"lack the permission {permission}"):
    run(ledger, s3_out, refuse_to_train)

  assert not ledger.path.exists()
  assert not work_folder_of(s3_out, ledger.path).exists()


def test_credentials_that_expire_while_it_trains_cost_nothing_more(
  ledger, s3_out, server
):
  first = Recorder()

  def train(folder, charge_ids):
    first(folder, charge_ids)
    server.fault = lambda kind: (400, "ExpiredToken") if kind == "PUT" else None

  with pytest.raises(RunError, match=r"expired.*same command puts the rest"):
    run(ledger, s3_out, train)
  server.fault = lambda kind: None
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


def test_a_bucket_that_refuses_half_way_gets_the_rest_of_the_same_bytes(
  ledger, s3_out, server
):
  first = Recorder()
  puts = []

  def fault(kind):
    if kind == "PUT":
      puts.append(kind)
    return 403 if len(puts) > 4 and kind == "PUT" else None

  server.fault = fault
  with pytest.raises(RunError, match="Not all was put"):
    run(ledger, s3_out, first)
  assert set(objects_of(server)) == set(PUT_IN_ORDER[:3])
  server.fault = lambda kind: None
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


def test_interrupted_while_it_puts_says_that_the_same_command_goes_on(
  ledger, s3_out, server
):
  put = storage.write_if_absent
  first = Recorder()

  def stop_at_table(store, name, content):
    if name == "results.csv":
      raise KeyboardInterrupt
    return put(store, name, content)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(storage, "write_if_absent", stop_at_table)
    with pytest.raises(KeyboardInterrupt) as stopped:
      run(ledger, s3_out, first)
  assert "the same command puts the rest" in str(stopped.value)
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


def test_puts_whose_answers_are_lost_are_found_to_be_its_own(
  ledger, s3_out, server
):
  lost = []

  def fault(kind):
    if kind == "PUT" and len(lost) < 3:
      lost.append(kind)
      return "lose"
    return None

  server.fault = fault
  run(ledger, s3_out)

  check_whole(server, ledger, s3_out)


def test_an_object_that_the_store_lost_is_put_by_the_next_run(
  ledger, s3_out, server
):
  first = Recorder()
  ask = server.ask

  def lose_weights(method, path, headers, body):
    if method == "PUT" and path.endswith("heads/1/head.safetensors"):
      return 200, [("etag", "x")], b""
    return ask(method, path, headers, body)

  server.ask = lose_weights
  with pytest.raises(RunError, match="was put, and the store does not"):
    run(ledger, s3_out, first)
  server.ask = ask
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files
