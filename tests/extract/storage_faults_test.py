"""Stores that misbehave, refuse, or cannot be reached."""

import datetime
import hashlib
import itertools
import time

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import object_store, storage
from oneshot_dp.extract.cache.check import check_cache
from oneshot_dp.extract.cache.read import open_cache
from tests.extract.cache.caches import digest, make_info, run_job
from tests.extract.object_server import BUCKET, served
from tests.extract.refusals import refused
from tests.extract.stores import STORES

# Bad networks.


class BadNetwork:
  """One call in five of each kind is refused, reset, cut or lost, in turn."""

  FAULTS = ("reset", "cut", "lose", 500, 503, 429)

  def __init__(self):
    self.made = set()
    self._counts: dict[str, itertools.count] = {}

  def __call__(self, kind):
    number = next(self._counts.setdefault(kind, itertools.count(1)))
    if number % 5 != 2:
      return None
    fault = self.FAULTS[number // 5 % len(self.FAULTS)]
    self.made.add((fault, kind))
    return fault


@pytest.mark.slow
@STORES
def test_job_over_a_bad_network_makes_the_same_bytes_at_the_first_try(
  place, tmp_path, monkeypatch
):
  network = BadNetwork()
  place.server.fault = network
  soon = {
    "init_backoff": datetime.timedelta(milliseconds=5),
    "base": 2,
    "max_backoff": datetime.timedelta(milliseconds=100),
  }
  monkeypatch.setattr(storage, "_WAITS", (0.01,) * 8)
  monkeypatch.setitem(object_store.RETRIES, "backoff", soon)
  storage._remote.cache_clear()
  info = make_info(120, 64, shard_rows=5)
  run_job(tmp_path / "local", info)

  run_job(place.url, info)

  # Of these obstore itself does not try again.
  assert {("reset", "PUT"), ("cut", "GET")} <= network.made
  assert check_cache(place.url) == []
  store = storage.store_at(place.url)
  digests = {}
  for name in storage.list_files(store):
    content = storage.read(store, name)
    assert content is not None
    digests[name] = hashlib.sha256(content).hexdigest()
  assert digests == digest(tmp_path / "local")


@pytest.mark.slow
@STORES
@pytest.mark.parametrize("fault", [500, "reset", "cut"])
def test_cache_in_a_store_that_fails_is_refused_with_its_url(
  place, no_waits, fault
):
  cache = run_job(place.url, make_info())
  place.server.fault = lambda kind: fault

  with refused(place.url, RunError):
    open_cache(place.url)
  with refused(place.url, RunError):
    list(cache.blocks())


@pytest.mark.slow
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_write_may_take_as_long_as_its_bytes_need(place, monkeypatch):
  store = storage.store_at(place.url)
  storage.list_files(store)
  monkeypatch.setattr(object_store, "_WRITE_SECONDS", 1)
  monkeypatch.setattr(object_store, "_SLOWEST_BYTES_PER_SECOND", 100_000)
  place.server.calls()
  place.server.fault = lambda kind: "slow"  # 2 s
  data = bytes(300_000)

  assert storage.write_if_absent(store, "x", data) == data

  assert [call.split()[0] for call in place.server.calls()] == ["PUT"]


def test_store_without_a_network_is_refused_at_once(
  tmp_path, monkeypatch, request
):
  with served(monkeypatch, tmp_path) as server:
    url = server.url
  # Its port is closed now, and nobody has spoken to the store before.
  monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
  storage._remote.cache_clear()
  request.addfinalizer(storage._remote.cache_clear)
  begin = time.monotonic()

  with refused("cannot be reached .*Connection refused"):
    storage.read(storage.store_at(f"s3://{BUCKET}/a"), "x")

  assert time.monotonic() - begin < 2


# Permissions and credentials.


PERMISSIONS = {
  ("GET",): {"s3": "s3:GetObject", "gs": "storage.objects.get"},
  ("PUT",): {"s3": "s3:PutObject", "gs": "storage.objects.create"},
  ("POST", "DELETE"): {
    "s3": "s3:DeleteObject",
    "gs": "storage.objects.delete",
  },
  ("LIST",): {"s3": "s3:ListBucket", "gs": "storage.objects.list"},
}


@STORES
@pytest.mark.parametrize("refused_calls", PERMISSIONS)
def test_missing_permission_is_named_without_the_secret_key(
  place, refused_calls
):
  permission = PERMISSIONS[refused_calls][place.url[:2]]

  def refuse_without_permission(kind):
    if kind in refused_calls:
      return 403
    return None

  place.server.fault = refuse_without_permission

  with refused(f"^{place.url}.*{permission}") as caught:
    run_job(place.url, make_info())

  assert "loopback-secret-0" not in str(caught.value)


@STORES
def test_bucket_that_does_not_exist_is_refused(place):
  place.server.fault = lambda kind: 404

  with refused("there is no such bucket"):
    run_job(place.url, make_info())


CREDENTIAL_FAULTS = [
  (403, "SignatureDoesNotMatch", "the secret key is wrong"),
  (403, "InvalidAccessKeyId", "does not know this access key"),
  (400, "ExpiredToken", "the session token has expired"),
  (301, "PermanentRedirect", "in another region; set AWS_REGION"),
  (400, "AuthorizationHeaderMalformed", "in another region"),
  (403, "AccessDenied", "lack the permission s3:(Get|List|Put)"),
  (404, "NoSuchBucket", "there is no such bucket"),
  (401, "Unauthorized", "these credentials are not valid"),
  (403, "RequestTimeTooSkewed", "this machine's clock is wrong"),
  (403, "InvalidObjectState", "refuses to (read|list|write) it: InvalidObj"),
  (400, "KMS.DisabledException", "refuses to .* it: KMS.DisabledException"),
]
CALLS = [
  lambda store: storage.read(store, "x"),
  storage.list_files,
  lambda store: storage.write_if_absent(store, "x", b"x"),
]


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize(("status", "code", "message"), CREDENTIAL_FAULTS)
def test_credentials_each_fault_has_its_own_line_and_no_second_try(
  place, status, code, message
):
  place.server.fault = lambda kind: (status, code)
  store = storage.store_at(place.url)

  for call in CALLS:
    with refused(f"^s3://.*{message}"):
      call(store)

  assert len(place.server.calls()) == len(CALLS)


@STORES
def test_reason_of_a_refusal_is_told_in_the_words_of_the_store(place):
  policy = "explicit deny: the bucket wants &quot;aws:kms&quot;"
  text = f"<Error><Code>AccessDenied</Code><Message>{policy}</Message></Error>"
  place.server.fault = lambda kind: None
  place.server.ask = lambda *_: (403, [], text.encode())

  with refused(r'lack the permission .* \(the store says: .* "aws:kms"\)'):
    storage.write_if_absent(storage.store_at(place.url), "x", b"x")


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_write_that_another_of_the_same_moment_disturbs_is_tried_again(
  place, monkeypatch
):
  monkeypatch.setattr(storage, "_WAITS", (0.01,))
  conflicts = iter([(409, "ConditionalRequestConflict")])

  def conflict_once(kind):
    if kind == "PUT":
      return next(conflicts, None)
    return None

  place.server.fault = conflict_once

  assert storage.write_if_absent(storage.store_at(place.url), "x", b"1") == b"1"


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_store_error_does_not_repeat_the_password_of_an_endpoint(
  place, monkeypatch, request
):
  with_password = place.server.url.replace("//", "//somebody:secret@")
  monkeypatch.setenv("AWS_ENDPOINT_URL_S3", with_password)
  monkeypatch.setattr(storage, "_WAITS", (0.01,))
  storage._remote.cache_clear()
  request.addfinalizer(storage._remote.cache_clear)
  place.server.fault = lambda kind: (400, "SomethingElse")

  with pytest.raises((InputError, RunError)) as raised:
    storage.read(storage.store_at(place.url), "x")

  assert "…@" in str(raised.value)
  assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://key:secret@data/x", "gs://secret@data"])
def test_url_with_a_password_is_refused_and_not_repeated(url):
  with pytest.raises(InputError, match="credentials come from") as raised:
    storage.store_at(url)

  assert "secret" not in str(raised.value)
