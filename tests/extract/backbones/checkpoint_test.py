import hashlib
import pathlib
import random

import flax.traverse_util
import numpy as np
import pytest

from configs.errors import InputError
from extract.backbones import checkpoint

POSITION = "Transformer/posembed_input/pos_embedding"
BLOCK = "Transformer/encoderblock_{}/LayerNorm_0/scale"
SHAPES = {
  "cls": (1, 1, 6),
  "embedding/kernel": (4, 4, 3, 6),
  "embedding/bias": (6,),
  POSITION: (1, 10, 6),
  BLOCK.format(0): (6,),
  BLOCK.format(1): (6,),
}


def arrays() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  return {
    key: rng.standard_normal(shape, dtype=np.float32)
    for key, shape in SHAPES.items()
  }


def save(folder: pathlib.Path, content: dict[str, np.ndarray]) -> str:
  path = folder / "weights.npz"
  np.savez(path, allow_pickle=True, **content)
  return str(path)


def test_every_array_arrives_under_its_name(tmp_path):
  content = arrays()
  path = save(tmp_path, content)
  params, sha256 = checkpoint.load_vit(path, SHAPES, "tiny")
  flat = flax.traverse_util.flatten_dict(params, sep="/")
  assert flat.keys() == content.keys()
  for key, value in content.items():
    np.testing.assert_array_equal(flat[key], value)
  data = pathlib.Path(path).read_bytes()
  assert sha256 == hashlib.sha256(data).hexdigest()


def test_other_precisions_become_float32(tmp_path):
  content = {k: v.astype(np.float16) for k, v in arrays().items()}
  params, _ = checkpoint.load_vit(save(tmp_path, content), SHAPES, "tiny")
  assert params["cls"].dtype == np.float32


def test_the_head_is_ignored_unless_asked_for(tmp_path):
  head = {
    "head/kernel": np.ones((6, 5), np.float32),
    "pre_logits/kernel": np.ones((6, 6), np.float32),
  }
  path = save(tmp_path, arrays() | head)
  params, _ = checkpoint.load_vit(path, SHAPES, "tiny")
  assert "head" not in params
  assert "pre_logits" not in params
  with_head = SHAPES | {"head/kernel": (6, 5)}
  with pytest.raises(InputError, match="unexpected: pre_logits/kernel"):
    checkpoint.load_vit(path, with_head, "tiny")
  path = save(tmp_path, arrays() | {"head/kernel": head["head/kernel"]})
  params, _ = checkpoint.load_vit(path, with_head, "tiny")
  assert params["head"]["kernel"].shape == (6, 5)


def test_all_faults_are_listed_by_name(tmp_path):
  content = arrays()
  del content["cls"], content["embedding/bias"]
  content["extra/scale"] = np.ones(1, np.float32)
  content[BLOCK.format(0)] = np.ones(7, np.float32)
  with pytest.raises(InputError) as caught:
    checkpoint.load_vit(save(tmp_path, content), SHAPES, "tiny")
  message = str(caught.value)
  assert "missing: cls, embedding/bias;" in message
  assert "unexpected: extra/scale;" in message
  assert f"{BLOCK.format(0)} [7] instead of [6]" in message
  assert "\n" not in message


def test_long_lists_are_cut_short_with_a_count(tmp_path):
  extra = {f"extra/{i:02d}": np.ones(1, np.float32) for i in range(11)}
  with pytest.raises(InputError, match=r"extra/07 and 3 more\.$"):
    checkpoint.load_vit(save(tmp_path, arrays() | extra), SHAPES, "tiny")


@pytest.mark.parametrize(
  ("change", "found"),
  [
    ({BLOCK.format(2): (6,)}, "width 6 depth 3 patch 4"),
    ({"embedding/kernel": (4, 4, 3, 8)}, "width 8 depth 2 patch 4"),
    ({"embedding/kernel": (2, 2, 3, 6)}, "width 6 depth 2 patch 2"),
  ],
)
def test_weights_of_another_architecture_are_recognised(
  tmp_path, change, found
):
  other = {k: np.ones(s, np.float32) for k, s in change.items()}
  with pytest.raises(
    InputError,
    match=f"look like {found}; tiny expects width 6 depth 2 patch 4",
  ):
    checkpoint.load_vit(save(tmp_path, arrays() | other), SHAPES, "tiny")


def test_weights_of_no_transformer_list_what_is_missing(tmp_path):
  path = save(tmp_path, {"conv_root/kernel": np.ones(3, np.float32)})
  with pytest.raises(InputError, match=r"missing: .*conv_root/kernel"):
    checkpoint.load_vit(path, SHAPES, "tiny")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path, value):
  content = arrays()
  content["cls"][0, 0, 3] = value
  with pytest.raises(InputError, match="cls has values that are not finite"):
    checkpoint.load_vit(save(tmp_path, content), SHAPES, "tiny")


def test_integers_are_refused(tmp_path):
  content = arrays() | {"cls": np.ones((1, 1, 6), np.int64)}
  with pytest.raises(InputError, match="cls is int64"):
    checkpoint.load_vit(save(tmp_path, content), SHAPES, "tiny")


def test_a_missing_file_is_named(tmp_path):
  path = str(tmp_path / "absent.npz")
  with pytest.raises(InputError, match=r"absent\.npz.*No such file"):
    checkpoint.load_vit(path, SHAPES, "tiny")


def test_a_folder_is_refused(tmp_path):
  with pytest.raises(InputError, match="cannot be read"):
    checkpoint.load_vit(str(tmp_path), SHAPES, "tiny")


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04junk"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
  path = tmp_path / "weights.npz"
  path.write_bytes(content)
  with pytest.raises(InputError, match="not an npz file"):
    checkpoint.load_vit(str(path), SHAPES, "tiny")


def test_pickled_objects_are_never_loaded(tmp_path):
  content = arrays() | {"cls": np.array([print], dtype=object)}
  with pytest.raises(InputError, match="Object arrays cannot be loaded"):
    checkpoint.load_vit(save(tmp_path, content), SHAPES, "tiny")


def test_a_damaged_file_is_refused_or_read_as_it_was(tmp_path):
  content = arrays()
  path = pathlib.Path(save(tmp_path, content))
  data = path.read_bytes()
  chance = random.Random(0)
  for _ in range(200):
    damaged = bytearray(data)
    damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(damaged)
    try:
      params, _ = checkpoint.load_vit(str(path), SHAPES, "tiny")
    except InputError:
      continue
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    for key, value in content.items():
      np.testing.assert_array_equal(flat[key], value)


def test_positions_of_the_same_size_are_untouched():
  positions = arrays()[POSITION]
  assert checkpoint.interpolate_positions(positions, 10, "w") is positions


@pytest.mark.parametrize("new", [1, 2, 5, 7])
def test_positions_are_bilinear_with_the_corners_aligned(new):
  y, x = np.mgrid[:3, :3] / 2.0
  plane = np.stack([x, y, x * y, 1 - x, x + 2 * y, x - y], axis=-1)
  cls = np.full((1, 1, 6), 9.0)
  positions = np.concatenate([cls, plane.reshape(1, 9, 6)], axis=1)
  got = checkpoint.interpolate_positions(
    positions.astype(np.float32), 1 + new**2, "w"
  )
  np.testing.assert_array_equal(got[:, :1], cls)
  if new > 1:
    # A bilinear surface is reproduced exactly between its own corners.
    y, x = np.mgrid[:new, :new] / (new - 1)
    plane = np.stack([x, y, x * y, 1 - x, x + 2 * y, x - y], axis=-1)
    np.testing.assert_allclose(got[0, 1:], plane.reshape(-1, 6), atol=1e-6)


def test_positions_of_no_square_grid_are_refused(tmp_path):
  content = arrays() | {POSITION: np.ones((1, 8, 6), np.float32)}
  with pytest.raises(InputError, match="8 tokens"):
    checkpoint.load_vit(save(tmp_path, content), SHAPES, "tiny")


def test_positions_are_interpolated_on_loading(tmp_path):
  larger = SHAPES | {POSITION: (1, 17, 6)}
  params, _ = checkpoint.load_vit(save(tmp_path, arrays()), larger, "tiny")
  got = params["Transformer"]["posembed_input"]["pos_embedding"]
  assert got.shape == (1, 17, 6)
