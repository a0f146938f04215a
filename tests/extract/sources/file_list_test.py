import json

import pytest

from oneshot_dp.extract.sources.file_list import FileList, mended, parsed

FILES = [
  ("a/1.png", 3),
  ('b], ["/é".jpg', 0),
  ("c[[/\\", 9),
  ("d/0], [.PNG", 12),
]


@pytest.mark.parametrize("files", [[], FILES[:1], FILES])
@pytest.mark.parametrize(
  "parts", [[["a", "x[["]], [["[[", '"'], ["user", [3, -1]]]]
)
def test_a_listing_is_the_json_that_it_was(files, parts):
  """In less memory: jobs that began before go on."""
  listing = json.dumps([*parts, files]).encode()
  assert FileList.of(iter(files)).after(*parts) == listing
  if files:
    found, read = parsed(listing)
    assert (found, list(read), len(read)) == (parts, files, len(files))
    with pytest.raises(IndexError):
      read[len(files)]


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
