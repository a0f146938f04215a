import json
import tracemalloc

import pytest

from oneshot_dp.extract.sources import file_list
from oneshot_dp.extract.sources.file_list import FileList, mended, parsed

FILES = [
  ("a/1.png", 3),
  ('b], ["/é".jpg', 0),
  ("c[[/\\", 9),
  ("d/0], [.PNG", 12),
]


@pytest.mark.parametrize("at_once", [1, 2, 3, 64])
@pytest.mark.parametrize("files", [[], FILES[:1], FILES])
@pytest.mark.parametrize(
  "parts", [[["a", "x[["]], [["[[", '"'], ["user", [3, -1]]]]
)
def test_a_listing_is_the_json_that_it_was(files, parts, at_once, monkeypatch):
  """In less memory: jobs that began before go on."""
  monkeypatch.setattr(file_list, "_READ_AT_ONCE", at_once)
  monkeypatch.setattr(file_list, "_ENCODED_AT_ONCE", at_once)
  monkeypatch.setattr(file_list, "_FIRST_LOOK_BYTES", at_once)
  listing = json.dumps([*parts, files]).encode()
  assert FileList.of(iter(files)).after(*parts) == listing
  if files:
    found, read = parsed(listing)
    assert (found, list(read), len(read)) == (parts, files, len(files))
    places = [*range(len(files)), *reversed(range(len(files))), 0]
    assert [read[i] for i in places] == [files[i] for i in places]
    for outside in (-1, len(files)):
      with pytest.raises(IndexError):
        read[outside]


@pytest.mark.slow
def test_a_listing_is_not_in_memory():
  """300 million names are 14 GB: of a launcher, and of each worker."""
  files = ((f"class/image_{i:012d}.jpg", i) for i in range(60_000))
  tracemalloc.start()
  try:
    listing = FileList.of(files).after(["class"])
    _, read = parsed(listing)
    assert sum(size for _, size in read) == sum(range(60_000))
    assert mended(listing, listing) == []
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert len(listing) > 2_000_000
  assert peak < 600_000


def test_what_was_mended():
  before = FileList.of(FILES).after(["a"])
  for i, (path, size) in enumerate(FILES):
    now = [*FILES]
    now[i] = path, size + 1
    assert mended(before, FileList.of(now).after(["a"])) == [i]
    now[i] = path + "x", size
    assert mended(before, FileList.of(now).after(["a"])) is None
  assert mended(before, FileList.of(FILES).after(["b"])) is None
  assert mended(before, b"12ab") is mended(b"table\n[]", before) is None
