import hashlib
import pathlib
import random
from typing import Any

import flax.traverse_util
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import linen as nn

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Architecture, Arrays
from oneshot_dp.extract.backbones.checkpoint import read_arrays, to_params
from oneshot_dp.extract.images.preprocess import Preprocessing
from tests.extract.refusals import refused

SHAPES = {"cls": (1, 1, 6), "block/kernel": (6, 6), "block/bias": (6,)}


def rename(arrays, shapes, path):
  """Drops the head, and takes one prefix off, as a family would."""
  assert shapes == SHAPES
  assert path.endswith(("npz", "safetensors"))
  return {
    key.removeprefix("net/"): value
    for key, value in arrays.items()
    if not key.startswith("head/")
  }


TINY = Architecture(
  name="tiny",
  summary="a network of three arrays",
  layouts=("its own npz",),
  embeddings=("cls",),
  reference=Preprocessing(),
  network=lambda embedding, compute_dtype: nn.Module(),
  rename=rename,
)


def arrays() -> Arrays:
  draw = np.random.default_rng(0).standard_normal
  return {key: draw(shape, np.float32) for key, shape in SHAPES.items()}


def save(folder: pathlib.Path, content: Arrays) -> pathlib.Path:
  path = folder / "weights.npz"
  np.savez(path, allow_pickle=True, **content)
  return path


def save_safetensors(folder: pathlib.Path, content: Arrays) -> pathlib.Path:
  path = folder / "weights.safetensors"
  safetensors.numpy.save_file(content, path)
  return path


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
  found, _ = read_arrays(path)
  tree = to_params(TINY, found, SHAPES, path)
  flat: dict[str, Any] = flax.traverse_util.flatten_dict(tree, sep="/")
  return flat


@pytest.mark.parametrize("saved", [save, save_safetensors])
def test_every_array_arrives_under_its_name(tmp_path, saved):
  content = arrays()
  # What the family leaves out is left out.
  head = {"head/kernel": np.ones((6, 5), np.float32)}
  path = saved(tmp_path, head | {f"net/{k}": v for k, v in content.items()})
  params = load(path)
  assert params.keys() == content.keys()
  for key, value in content.items():
    np.testing.assert_array_equal(params[key], value)
  data = path.read_bytes()
  assert read_arrays(path)[1] == hashlib.sha256(data).hexdigest()


def test_the_content_tells_the_format_not_the_name(tmp_path):
  path = save_safetensors(tmp_path, arrays())
  other = path.with_suffix(".npz")
  path.rename(other)
  assert load(other).keys() == SHAPES.keys()


@pytest.mark.parametrize("saved", [save, save_safetensors])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_other_precisions_become_float32(tmp_path, saved, dtype):
  content = {k: v.astype(dtype) for k, v in arrays().items()}
  params = load(saved(tmp_path, content))
  for key, value in content.items():
    assert params[key].dtype == np.float32
    np.testing.assert_array_equal(params[key], value.astype(np.float32))


def test_all_faults_are_listed_by_name(tmp_path):
  content = arrays()
  del content["cls"]
  content["extra/scale"] = np.ones(1, np.float32)
  content["block/bias"] = np.ones(7, np.float32)
  with pytest.raises(InputError) as caught:
    load(save(tmp_path, content))
  message = str(caught.value)
  assert "weights.npz is not a file of weights for tiny" in message
  assert "missing: cls;" in message
  assert "unexpected: extra/scale;" in message
  assert "block/bias [7] instead of [6]" in message
  assert "(It reads its own npz.)" in message
  assert "\n" not in message


def test_long_lists_are_cut_short_with_a_count(tmp_path):
  extra = {f"extra/{i:02d}": np.ones(1, np.float32) for i in range(11)}
  with refused(r"extra/07 and 3 more\."):
    load(save(tmp_path, arrays() | extra))


def faulty(value) -> dict[str, np.ndarray]:
  return arrays() | {"cls": np.full((1, 1, 6), value)}


@pytest.mark.parametrize(
  ("write", "message"),
  [
    (lambda at: save(at, faulty(np.nan)), "cls has values that are not finite"),
    (lambda at: save(at, faulty(np.inf)), "cls has values that are not finite"),
    (lambda at: save(at, faulty(1)), "cls is int64"),
    (lambda at: save(at, faulty(print)), "Object arrays cannot be loaded"),
    (lambda at: at / "absent.npz", r"absent\.npz.*No such file"),
    (lambda at: at, "cannot be read"),
  ],
)
def test_what_is_no_weights_is_refused(tmp_path, write, message):
  with refused(message):
    load(write(tmp_path))


@pytest.mark.parametrize(
  "content", [b"", b"not weights", b"PK\x03\x04junk", None]
)
def test_a_file_of_neither_format_or_cut_short_is_refused(tmp_path, content):
  path = save_safetensors(tmp_path, arrays())
  path.write_bytes(path.read_bytes()[:-5] if content is None else content)
  with refused("neither an npz nor a whole"):
    read_arrays(path)


def test_a_damaged_file_is_refused_or_read_as_it_was(tmp_path):
  content = arrays()
  path = save(tmp_path, content)
  data = path.read_bytes()
  chance = random.Random(0)
  for _ in range(200):
    damaged = bytearray(data)
    damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(damaged)
    try:
      params = load(path)
    except InputError:
      continue
    for key, value in content.items():
      np.testing.assert_array_equal(params[key], value)
