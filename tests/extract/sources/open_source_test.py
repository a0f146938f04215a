import concurrent.futures
import pathlib

import numpy as np
import pytest

from oneshot_dp.configs import extract_config
from oneshot_dp.extract.sources.example import Source
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.processes import python
from tests.extract.tables import KINDS, write_table


@pytest.fixture
def configs(tmp_path: pathlib.Path) -> dict[str, extract_config.Source]:
  """The same two examples in each kind of source that has files."""
  for name in ("a", "b"):
    (tmp_path / "folder" / name).mkdir(parents=True)
    (tmp_path / "folder" / name / "1.png").write_bytes(name.encode())
  np.savez(
    tmp_path / "arrays.npz",
    image=np.zeros((2, 4, 4, 3), np.uint8),
    label=np.arange(2),
    class_names=np.array(["a", "b"]),
  )
  tables: dict[str, extract_config.Source] = {}
  for kind in KINDS:
    path = tmp_path / f"{kind}.{kind}"
    write_table(path, [b"a", b"b"], ["a", "b"], label=[0, 1])
    names = ("a", "b") if kind == "tar" else ()
    tables[kind] = extract_config.TableSource(path=str(path), class_names=names)
  return tables | {
    "folder": extract_config.ImageFolderSource(root=str(tmp_path / "folder")),
    "arrays": extract_config.ArraysSource(path=str(tmp_path / "arrays.npz")),
  }


@pytest.mark.parametrize("kind", ["folder", "arrays", *KINDS])
def test_config_chooses_the_source(configs, kind):
  opened = open_source(configs[kind], "all")
  assert isinstance(opened, Source)
  assert opened.name == kind
  assert opened.class_names == ("a", "b")
  assert [example.label for example in opened] == [0, 1]
  assert [example.example_id for example in opened] == [0, 1]
  for index in (-1, 2):
    with pytest.raises(IndexError, match=f"{index} is not in"):
      opened[index]


@pytest.mark.parametrize("kind", ["folder", "arrays", *KINDS])
def test_eight_threads_read_what_one_reads(configs, kind):
  opened = open_source(configs[kind], "all")

  def read(index: int) -> tuple[int, int, bytes]:
    found = opened[index]
    return found.example_id, found.label, np.asarray(found.image).tobytes()

  one = [read(0), read(1)]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert (
      list(pool.map(read, [0, 1, 1, 0] * 100))
      == one + one[::-1] + (one + one[::-1]) * 99
    )


def test_other_sources_do_not_pay_for_tfds(configs):
  script = f"""
import sys
from oneshot_dp.configs.extract_config import *
from oneshot_dp.extract.sources.open_source import open_source
from tests.extract.tables import KINDS, write_table
for config in {list(configs.values())!r}:
  open_source(config, "all")
loaded = {{"tensorflow_datasets", "tensorflow", "apache_beam", "jax"}}
assert not loaded & set(sys.modules), loaded & set(sys.modules)
"""
  python(script)
