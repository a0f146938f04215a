"""A listing in pieces is the same listing."""

import base64
import hashlib
import json
import os
import pathlib
import re
from typing import Any

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.job import listing, shard, worker
from oneshot_dp.extract.job.job import cache_info
from oneshot_dp.extract.sources.open_source import open_source, open_unlabeled
from oneshot_dp.extract.sources.source import Source
from tests.extract import object_server
from tests.extract.cache.caches import make_info
from tests.extract.job.jobs import N, job_of, write_folder
from tests.extract.refusals import refused
from tests.extract.sources.fixtures import (
  encode_png,
  open_dataset,
  write_files,
  write_table,
)

SHARD_ROWS = 32


def digest_of_before(source: Source) -> str:
  """The digest of whole listings, as jobs of before the pieces have it."""

  def encode_array(array):
    data = base64.b64encode(array.tobytes()).decode()
    return array.dtype.str, array.shape, data

  fields: dict[str, Any] = {"kind": type(source).__name__}
  names = "name split class_names unit labels unit_ids root files columns"
  for name in names.split():
    fields[name] = getattr(source, name)
  fields["files"] = list(source.files)
  fields["columns"] = source.columns or [""] * len(source.files)
  fields["locations"] = source.locations_of(0, len(source))
  text = json.dumps(fields, default=encode_array)
  return hashlib.sha256(text.encode()).hexdigest()


def open_kind(kind: str, folder: pathlib.Path) -> Source:
  """A source of 70 examples or fewer."""
  if kind == "folder":
    write_folder(folder / "photos", N)
    (folder / "photos" / os.fsdecode(b"cat/\xff.png")).write_bytes(b"?")
    return open_dataset(folder / "photos", units="/(?P<someone>[^/]+)$")
  if kind == "unlabeled":
    write_files(folder, "photos/é.png", "photos/b/a.jpg")
    return open_unlabeled([str(folder / "photos")])
  for number, rows in enumerate((20, 50)):
    write_table(
      folder / f"train-{number}.{kind}",
      [encode_png(row) for row in range(rows)],
      label=[row % 3 for row in range(rows)],
      owner=[f"p{row // 2}" for row in range(rows)],
    )
  names = ("cat", "dog", "ox")
  return open_dataset(folder, class_names=names, units="owner")


KINDS = ["folder", "unlabeled", "parquet", "tar"]


@pytest.mark.parametrize("kind", KINDS)
def test_digest_is_that_of_jobs_of_before(tmp_path, monkeypatch, kind):
  """A cache that was half made then goes on, and its records are the same."""
  monkeypatch.setattr(listing, "_AT_ONCE", 6)
  source = open_kind(kind, tmp_path)

  assert listing.listing_digest(source) == digest_of_before(source)


@pytest.mark.parametrize("kind", KINDS)
def test_sections_list_each_example_as_the_source_does(tmp_path, kind):
  source = open_kind(kind, tmp_path)
  header = listing.decode_header(listing.encode_header(source))
  info = make_info(len(source), shard_rows=SHARD_ROWS)

  for index in range(info.num_shards):
    rows = info.shard_range(index)
    section = listing.encode_section(source, rows)
    part = listing.decode_section(header, section, rows.start)

    assert len(part) == len(rows)
    assert part.class_names == source.class_names
    for row in rows:
      assert part[row] == source[row]
      assert part.name_of(row) == source.name_of(row)
    with pytest.raises(IndexError, match="is not in"):
      part[rows.stop]


@pytest.fixture
def launched(tmp_path, monkeypatch):
  """A launch of three shards, in a store that counts; two are in a piece."""
  monkeypatch.setattr(listing, "PIECE_BYTES", 1500)
  config = job_of(tmp_path / "photos")
  write_folder(tmp_path / "photos", N)
  with object_server.served(monkeypatch, tmp_path) as server:
    out = f"s3://{object_server.BUCKET}/cache"
    embedder = shard.load_embedder(config)
    source = open_source(config.source)
    info = cache_info(config, source, embedder.backbone)
    job = shard.Job(out, config, CacheJob(info=info), source, embedder)
    run = worker.launch(job)
    yield server, job, run


def reads_of_listing(server: object_server.ObjectServer) -> list[str]:
  """The names of the pieces that were read."""
  calls = [call.partition("?")[0] for call in server.calls()]
  return [c.rpartition("/")[2] for c in calls if c[:3] == "GET"]


def test_pieces_are_put_once_and_the_launch_file_last(launched):
  server, _, run = launched

  puts = [call for call in server.calls() if call.startswith("PUT")]

  names = [f"listing.{run}.00000", f"listing.{run}.00001", f"launch.{run}"]
  assert [put.rpartition("/job.")[2] for put in puts] == names


def test_worker_reads_the_listing_of_its_shard_alone(launched):
  server, job, run = launched
  server.calls()
  loaded = worker.load_job(job.out, run)
  assert reads_of_listing(server) == [f"job.launch.{run}"]
  assert len(loaded.source) == 0

  made = shard.extract_shard(loaded, 1)

  pieces = [name for name in reads_of_listing(server) if "listing" in name]
  assert pieces == [f"job.listing.{run}.00000"]
  assert shard.extract_shard(job, 1) == made


@pytest.mark.parametrize("old", [b"[1,", b'["of before numbers",'])
def test_a_worker_of_another_version_is_refused_in_words(launched, old):
  server, job, run = launched
  name = next(name for name in server.objects if f"job.launch.{run}" in name)
  server.objects[name] = re.sub(rb"^\[\d+,", old, server.objects[name])

  with refused("have different versions of oneshot-dp", RunError):
    worker.load_job(job.out, run)


def test_launch_file_does_not_grow_with_the_images(launched):
  """By 7 bytes for each shard of 2,048: the size of its section."""
  server, _, run = launched
  name = f"cache/job.launch.{run}"
  content = json.loads(server.objects[name])

  assert [len(sizes) for sizes in content[4]] == [2, 1]
  assert "0013.png" not in server.objects[name].decode()


def test_piece_that_was_removed_is_said(launched):
  server, job, run = launched
  loaded = worker.load_job(job.out, run)
  del server.objects[f"cache/job.listing.{run}.00001"]

  with refused(r"listing.*00001 was removed, or is cut short", RunError):
    shard.extract_shard(loaded, 2)
