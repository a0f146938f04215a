"""Whoever holds a store need not know which it is."""

import os
import pathlib
import threading
import time

import numpy as np
import pytest
from obstore.store import MemoryStore

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import (
  ArraysSource,
  ImageFolderSource,
  TableSource,
  UnlabelledSource,
)
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.extract.cache.writer import claim
from oneshot_dp.extract.job.job import run_extraction
from oneshot_dp.extract.sources.open_source import open_source
from oneshot_dp.extract.sources.table.parquet import ParquetImages
from oneshot_dp.extract.storage import fetch_ahead, objects
from oneshot_dp.extract.storage.store import store_at
from oneshot_dp.pipeline.cli import main
from tests.extract.caches import digest, make_identity, write_cache
from tests.extract.image_jobs import CLASSES, array_job, labels, write_npz
from tests.extract.processes import python
from tests.extract.refusals import refused
from tests.extract.storage.object_servers import SECRET, STRANGER
from tests.extract.tables import KINDS, png, write_table

STORES = [pytest.param(kind, marks=pytest.mark.stores) for kind in ("s3", "gs")]
BUCKETS = pytest.mark.parametrize("place", STORES, indirect=True)
EVERYWHERE = pytest.mark.parametrize("place", ["disk", *STORES], indirect=True)


@EVERYWHERE
def test_a_store_keeps_what_it_is_given(place, monkeypatch):
  monkeypatch.setattr(objects, "_BEAT_SECONDS", 0.05)
  monkeypatch.setattr(fetch_ahead, "_RANGE_BYTES", 1 << 20)
  store = store_at(place[0])
  assert store.sizes() == {}
  with pytest.raises(FileNotFoundError):
    store.read("a/b")
  assert store.put("a/b", b"one")
  assert store.put("a/c", b"two", create=True)
  assert store.put("a/c", b"two", create=True)
  assert not store.put("a/c", b"three", create=True)
  assert store.read("a/c") == b"two"
  content = os.urandom(5 << 20)
  with store.scratch("a/large") as path:
    path.write_bytes(content)
  with pytest.raises(KeyError), store.scratch("a/none") as path:
    raise KeyError
  store.move("a/large", "large")
  store.move("a/large", "large")  # as whoever else settles a shard does
  with pytest.raises(FileNotFoundError):
    store.move("a/large", "other")
  assert store.sizes() == {"a/": 0, "large": len(content)}
  assert store.sizes("a") == {"b": 3, "c": 3}
  files = [("large", len(content)), ("a/b", 3), ("large", len(content))]
  read = [path.read_bytes() for path in store.local_files(files)]
  assert read == [content, b"one", content]
  some = store.local_files(files)
  next(some)
  some.close()
  told = pytest.raises(InputError, match="another job is writing there")
  with store.lock("a/lock"), told:
    store.lock("a/lock").__enter__()
  with store.lock("a/lock"):
    pass
  store.remove(["a/", "large", "none"])
  assert store.sizes() == {}


def test_a_lock_that_was_taken_over_is_not_removed(monkeypatch):
  """By a job that was asleep for so long that it was taken for dead."""
  monkeypatch.setattr(objects, "_BEAT_SECONDS", 0.01)
  monkeypatch.setenv("AWS_REGION", "us-east-1")
  store = objects.ObjectStore("s3", "bucket", "cache")
  monkeypatch.setattr(store, "_store", MemoryStore())
  with store.lock("lock"):
    store.put("lock", b"theirs")
    deadline = time.monotonic() + 10
    while any(thread.name == "lock" for thread in threading.enumerate()):
      assert time.monotonic() < deadline
      time.sleep(0.01)
  assert store.read("lock") == b"theirs"


def _copied(url, to):
  store = store_at(url)
  to.mkdir()
  for name in store.sizes():
    (to / name).write_bytes(store.read(name))
  return to


@BUCKETS
def test_a_bad_network_makes_the_same_cache(place, tmp_path, monkeypatch):
  """Busy, broken, slow, with answers lost or cut: same bytes, rows, keys."""
  url, proxy = place
  rng = np.random.default_rng(0)
  faults = [500, 503, 429, "drop", "lose", "slow"]

  def fault(number, method):
    bad = rng.random() < 0.15
    return faults[rng.integers(len(faults))] if bad else None

  proxy.fault = fault
  monkeypatch.setattr(fetch_ahead, "_RANGE_BYTES", 1 << 14)
  identity = make_identity(n=2000, d=64, shard_rows=300)
  with claim(url, identity) as unfinished:
    assert unfinished
    write_cache(url, identity)
  write_cache(tmp_path / "local", identity)
  cache, local = open_cache(url), open_cache(tmp_path / "local")
  for one, other in zip(cache.blocks(), local.blocks(), strict=True):
    np.testing.assert_array_equal(one.embedding, other.embedding)
  # What the ledger goes by.
  for one, other in zip(cache.key_blocks(), local.key_blocks(), strict=True):
    np.testing.assert_array_equal(one, other)
  assert cache.private_digest == local.private_digest
  assert str(verify_cache(url)) == "ok: 7 shards, 2,000 rows"
  proxy.fault = lambda number, method: None
  assert digest(_copied(url, tmp_path / "copy")) == digest(local.path)
  sent = [name.lower() for _, _, headers in proxy.seen for name in headers]
  assert not [name for name in sent if "acl" in name or "grant" in name]


@BUCKETS
def test_opening_lists_once_and_reading_lists_nothing(place):
  url, proxy = place
  write_cache(url, make_identity())
  proxy.forget()
  list(open_cache(url).blocks())
  lists = [path for _, path, _ in proxy.seen if "list-type" in path]
  assert len(lists) == 1
  assert len(proxy.seen) == 3 + 3  # cache_info, shards, the list; the shards


@BUCKETS
@pytest.mark.parametrize("write", [False, True])
def test_no_permission_is_one_line_with_no_secret(place, monkeypatch, write):
  url, proxy = place
  proxy.fault = lambda number, method: 403
  with refused("does not let these cred") as caught:
    write_cache(url, make_identity()) if write else open_cache(url)
  assert str(caught.value).startswith(url)
  assert SECRET not in str(caught.value)


@BUCKETS
def test_a_server_that_stays_broken_is_one_line(place, monkeypatch):
  url, proxy = place
  write_cache(url, make_identity())
  retries = objects._RETRIES | {"max_retries": 2}
  monkeypatch.setattr(objects, "_RETRIES", retries)
  objects.object_store.cache_clear()
  proxy.fault = lambda number, method: 500
  with refused("500 Internal Server Error", RunError):
    open_cache(url)
  proxy.fault = lambda number, method: None
  cache = open_cache(url)
  proxy.fault = lambda number, method: "drop"
  with refused(url, RunError):
    list(cache.blocks())


@pytest.mark.parametrize("place", STORES[:1], indirect=True)
def test_images_become_the_same_cache(place, tmp_path):
  url, _ = place
  write_npz(tmp_path / "pets.npz", 70)
  job = array_job(tmp_path / "pets.npz")
  # As the command line gives it: pathlib takes one of the slashes.
  report = run_extraction(job, pathlib.Path(url))
  assert str(report.cache.path) == url
  run_extraction(job, tmp_path / "local")
  assert digest(_copied(url, tmp_path / "copy")) == digest(tmp_path / "local")
  train = ["--epsilon", "1", "--delta", "1e-5", "--head", "lamb", "--quiet"]
  train += ["--ledger-dir", str(tmp_path / "ledgers"), "--out"]
  assert not main(["train", "--cache", url, *train, str(tmp_path / "head")])
  out = tmp_path / "classes.csv"
  assert not main(["predict", str(tmp_path / "head"), url, "--out", str(out)])
  assert len(out.read_text().splitlines()) == 71
  store_at(url).put("loose/1.png", png(np.zeros((8, 8, 3), np.uint8)))
  words = ["predict", str(tmp_path / "head"), f"{url}/loose"]
  assert not main([*words, "--out", str(tmp_path / "loose.csv")])
  _, row = (tmp_path / "loose.csv").read_text().splitlines()
  assert row.startswith(f"{url}/loose/1.png,")


@BUCKETS
def test_sources_are_the_same_from_a_bucket(place, tmp_path):
  url, proxy = place
  store = store_at(url)
  for name in ("cat/1.png", "dog/a/2.PNG", "dog/3.png", "dog/.x.png", "ox/4"):
    for split in ("train", "test"):
      file = tmp_path / "pets" / split / name
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(f"{split} {name}".encode())
      store.put(f"pets/{split}/{name}", file.read_bytes())
  proxy.forget()
  classes = ("cat", "dog", "ox")  # ox has no image
  there = open_source(
    ImageFolderSource(root=f"{url}/pets/", class_names=classes), "train"
  )
  lists = [path for _, path, _ in proxy.seen if "list-type" in path]
  assert len(lists) == len(set(lists))
  folder = ImageFolderSource(root=str(tmp_path / "pets"), class_names=classes)
  here = open_source(folder, "train")
  assert (there.name, there.class_names) == ("pets", classes)
  assert there.class_names == here.class_names
  assert len(there) == len(here) == 3
  for i in range(3):
    assert vars(there[i]) == vars(here[i])
    assert there.where(i).startswith(f"{url}/pets/train/")
  with refused(r"has no split 'val': it has test, tra"):
    open_source(ImageFolderSource(root=f"{url}/pets"), "val")
  with refused("is not a folder"):
    open_source(ImageFolderSource(root=f"{url}/none"), "train")
  write_npz(tmp_path / "pets.npz", 7)
  store.put("pets.npz", (tmp_path / "pets.npz").read_bytes())
  there = open_source(ArraysSource(path=f"{url}/pets.npz"), "train")
  here = open_source(ArraysSource(path=str(tmp_path / "pets.npz")), "train")
  np.testing.assert_array_equal(there[6].image, here[6].image)
  with refused(r"none\.npz' is not a readable npz"):
    open_source(ArraysSource(path=f"{url}/none.npz"), "train")


@BUCKETS
@pytest.mark.parametrize("kind", KINDS)
def test_tables_and_what_predict_is_given_are_the_same(place, tmp_path, kind):
  url, _ = place
  names = [f"{split}-{i}.{kind}" for split in ("train", "test") for i in (0, 1)]
  images = [png(np.full((4, 4, 3), i, np.uint8)) for i in range(20)]
  for name in names:
    file = tmp_path / "pets" / name
    write_table(file, images, CLASSES, label=labels(20).tolist())
    store_at(url).put(f"pets/{name}", file.read_bytes())
  stated = CLASSES if kind == "tar" else ()
  here, there = (
    TableSource(path=f"{root}/pets", class_names=stated)
    for root in (tmp_path, url)
  )
  listed = open_source(here, "train").listing
  found = open_source(there, "train")
  assert found.listing == listed
  worker = open_source(there, "train", listed)
  assert [vars(e) for e in worker] == [vars(e) for e in found]
  assert [e.image for e in worker] == images * 2

  store_at(url).put("loose/1.png", images[7])
  alone = [f"{url}/loose", f"{url}/pets/{names[1]}", f"{url}/loose/1.png"]
  shown = open_source(UnlabelledSource(paths=tuple(alone)), "all")
  assert [e.image for e in shown] == [images[7], *images, images[7]]
  again = open_source(UnlabelledSource(paths=tuple(alone)), "all")
  assert again.name == shown.name
  store_at(url).put("loose/1.png", images[8])
  assert len(images[7]) == len(images[8])
  other = open_source(UnlabelledSource(paths=tuple(alone)), "all")
  assert other.name != shown.name

  if kind == "parquet":
    rows = ParquetImages(f"{url}/pets/{names[0]}")  # two row groups are kept
    assert rows[0] == images[0]
    store_at(url).put(f"pets/{names[0]}", bytes(len(file.read_bytes())))
    with pytest.raises(OSError, match="was changed"):
      rows[19]


# Kills a job after a call of the store, in a process of its own, then runs it
# again. This process itself never calls the store: its threads would not
# survive the fork.
_KILLS = """
import os, signal, sys
from oneshot_dp.extract.cache.writer import claim
from oneshot_dp.extract.job.job import run_extraction
from oneshot_dp.extract.storage import objects
from tests.extract import caches

objects._BEAT_SECONDS = 0.05
identity = caches.make_identity()

def run(url, last):
  calls, ask = iter(range(1000)), objects.ObjectStore._ask
  def mortal(self, name, call, **options):
    answer = ask(self, name, call, **options)
    if not name.endswith("lock") and next(calls) == last:
      os.kill(os.getpid(), signal.SIGKILL)
    return answer
  objects.ObjectStore._ask = mortal
  with claim(url, identity):
    caches.write_cache(url, identity)

def in_child(*args):
  pid = os.fork()
  if not pid:
    try:
      run(*args)
    finally:
      os._exit(0)
  return os.WTERMSIG(os.waitpid(pid, 0)[1])

for step in range(1, 56, 5):
  assert in_child(f"{sys.argv[1]}/{step}", step) == signal.SIGKILL, step
  assert in_child(f"{sys.argv[1]}/{step}", None) == 0, step
"""


@pytest.mark.slow
@BUCKETS
def test_killed_anywhere_and_run_again_gives_the_same_bytes(place, tmp_path):
  url, _ = place
  write_cache(tmp_path / "whole", make_identity())
  python(_KILLS, url)
  for step in range(1, 56, 5):
    copy = _copied(f"{url}/{step}", tmp_path / f"{step}")
    assert digest(copy) == digest(tmp_path / "whole"), step


@pytest.mark.parametrize("place", STORES[:1], indirect=True)
def test_a_bucket_of_others_is_refused(place, monkeypatch):
  """By a real server: the account has no permission for the bucket."""
  url, _ = place
  write_cache(url, make_identity())
  monkeypatch.setenv("AWS_ACCESS_KEY_ID", STRANGER)
  objects.object_store.cache_clear()
  with refused("does not let these cred"):
    open_cache(url)
  with refused("does not let these credentials"):
    write_cache(f"{url}/new", make_identity())
