"""Single files, wherever they lie."""

import pathlib

import pytest

from oneshot_dp.extract import places, storage
from tests.extract import object_server
from tests.extract.refusals import refused


@pytest.fixture
def server(tmp_path, monkeypatch):
  with object_server.served(monkeypatch, tmp_path) as made:
    yield made


@pytest.fixture(params=["disk", "s3", "gs"])
def folder(request, tmp_path, server) -> pathlib.Path:
  if request.param == "disk":
    return tmp_path / "folder"
  return places.parse_place(f"{request.param}://{object_server.BUCKET}/folder")


def test_file_is_there_once_it_was_written(folder):
  file = folder / "a.csv"
  assert not places.exists(file)

  assert places.write_new(file, b"one")

  assert places.exists(file)
  assert places.read(file) == b"one"


def test_new_file_does_not_replace_one_that_is_there(folder):
  places.write_new(folder / "a.csv", b"one")

  assert not places.write_new(folder / "a.csv", b"two")

  assert places.read(folder / "a.csv") == b"one"


def test_replace_writes_over_what_is_there(folder):
  places.write_new(folder / "a.csv", b"one")

  places.replace(folder / "a.csv", b"two")

  assert places.read(folder / "a.csv") == b"two"


def test_missing_or_too_large_file_is_refused(folder):
  with refused("a.csv.*(does not exist|No such file)"):
    places.read(folder / "a.csv")
  places.write_new(folder / "a.csv", b"12345")
  with refused("5 bytes are more than 4"):
    places.read(folder / "a.csv", 4)


@pytest.mark.parametrize(
  ("word", "meant"),
  [
    ("s3a://b/x", "s3://b/x"),
    ("S3://b/x", "s3://b/x"),
    ("gs://b", "gs://b"),
    ("S3:/b/x", "s3://b/x"),  # a slash was lost
    ("file:///srv/x", "/srv/x"),
    ("file:/srv/x", "/srv/x"),
    ("file://localhost/srv/x", "/srv/x"),
    ("hf://owner/repo/x", "hf://owner/repo/x"),
    ("C:/x", "C:/x"),
  ],
)
def test_names_that_other_programs_have_are_understood(word, meant):
  assert places.normalize(word) == meant


@pytest.mark.parametrize("scheme", ["az", "abfs", "hdfs", "https"])
def test_store_that_cannot_be_read_is_named(scheme):
  place = places.parse_place(f"{scheme}://container/x")

  with refused(f"{scheme}://container is an address that is not read here"):
    places.read(place)
  with refused(f"{scheme}://container is an address that is not read here"):
    places.exists(place)


def test_file_of_another_machine_is_refused_and_not_taken_for_a_folder():
  with refused("a file of a machine called host: .* file:///folder"):
    places.parse_place("file://host/srv/x")


@pytest.mark.parametrize("word", ["s3:bucket/x", "GS:bucket", "file:x"])
def test_url_without_a_slash_is_refused_and_not_taken_for_a_folder(word):
  with refused(f"{word} is an address that is not read here"):
    storage.store_at(places.parse_place(word))


def test_url_keeps_both_slashes_however_it_is_joined():
  url = places.parse_place("s3://bucket/heads/2")

  assert str(url / "receipt.json") == "s3://bucket/heads/2/receipt.json"
  assert f"{url.parent}" == "s3://bucket/heads"
  assert str(url.with_name("3")) == "s3://bucket/heads/3"
  assert storage.is_url(url)
  assert places.as_place(pathlib.Path("s3://b/x")) == places.Url("s3://b/x")


@pytest.mark.parametrize(
  ("word", "meant"), [("s3a://b/x", "s3://b/x"), ("file:///srv/x", "/srv/x")]
)
def test_place_of_an_argument_is_that_of_the_same_word_typed(word, meant):
  assert str(places.as_place(word)) == meant
  assert places.as_place(word) == places.parse_place(word)


def test_url_resolves_to_itself_wherever_one_is(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)

  place = places.Url("s3://b/head").resolve() / "evaluation"

  assert str(place) == "s3://b/head/evaluation"
