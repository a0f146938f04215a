import dataclasses
import json
import re

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import strategies as st

from oneshot_dp.extract.cache.block import Block, BlockCodec, stored_norm
from oneshot_dp.extract.cache.identity import BackboneIdentity
from oneshot_dp.extract.cache.info import CacheInfo
from tests.extract.caches import make_identity
from tests.extract.refusals import refused

BACKBONE = make_identity().backbone


def _info(**changes):
  identity = make_identity(**changes)
  return CacheInfo.of(
    identity, num_examples=identity.source_num_examples, skipped_example_ids=()
  )


@pytest.mark.parametrize(
  ("change", "whole", "of_backbone"),
  [
    ({"dataset": "birds"}, True, False),
    ({"dataset_version": "4.0.0"}, True, False),
    ({"split": "test"}, True, False),
    ({"n": 21}, True, False),
    ({"d": 4}, True, True),
    ({"class_names": ("a", "b", "c", "d")}, True, False),
    ({"embedding_dtype": "float32"}, True, False),
    ({"preprocess": {"image_size": 384}}, True, True),
    ({"backbone": BackboneIdentity(name="vit_b16")}, True, True),
    ({"libraries": {"numpy": "9"}}, False, False),
    ({"shard_rows": 4}, False, False),
    ({"privacy_unit": "user"}, True, False),
    *(
      ({"backbone": dataclasses.replace(BACKBONE, **{name: "x"})}, True, True)
      for name in ("layer", "weights_sha256", "code_sha256")
    ),
  ],
)
def test_fingerprints_change_with_what_they_name(change, whole, of_backbone):
  one, other = _info(), _info(**change)
  assert (one.fingerprint != other.fingerprint) == whole
  differs = one.backbone_fingerprint != other.backbone_fingerprint
  assert differs == of_backbone


def test_fingerprint_says_nothing_of_what_was_skipped():
  identity = make_identity()
  for skipped in ((), (3,), (7,), (3, 7)):
    info = CacheInfo.of(
      identity, num_examples=20 - len(skipped), skipped_example_ids=skipped
    )
    assert info.fingerprint == _info().fingerprint


def test_info_survives_json():
  info = _info()
  assert CacheInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


@pytest.mark.parametrize(
  ("edit", "message"),
  [
    ({"format_version": 3}, "format_version=3 is not supported"),
    ({"num_examples": 19}, "was edited"),
    ({"fingerprint": "0" * 64}, "was edited"),
    ({"backbone_fingerprint": "0" * 64}, "was edited"),
    ({"num_classes": 5}, "was edited"),
    ({"unit": 1}, "was edited"),
    ({"backbone": {"nom": "x"}}, "malformed"),
    ({"feature_dim": 0}, "must be a positive integer"),
  ],
)
def test_edited_info_is_refused(edit, message):
  with refused(re.escape(message)):
    CacheInfo.from_json(_info().to_json() | edit)


def test_missing_field_is_named():
  data = _info().to_json()
  del data["split"]
  with refused("split"):
    CacheInfo.from_json(data)


@pytest.mark.parametrize(
  ("dataset", "split", "name"),
  [
    ("cifar10", "train", "cifar10-train"),
    ("my_data/config:1.0.0", "train[:10%]", "my_data_config_1_0_0-train_10"),
    ("2024 Pets!", "50%", "dataset_2024_pets-split_50"),
    ("…", "test", "dataset-test"),
  ],
)
def test_shard_names_are_legal_for_tfds(dataset, split, name):
  identity = make_identity(dataset=dataset, split=split)
  assert identity.shard_name(1) == f"{name}.array_record-00001-of-00003"


@pytest.mark.parametrize("shards", [1, 99_999, 100_000])
def test_shard_names_are_those_of_tfds(shards):
  identity = make_identity(8 * shards, shard_rows=8)
  assert identity.num_shards == shards
  template = tfds.core.ShardedFileTemplate(
    data_dir="",
    dataset_name="pets",
    split="train",
    filetype_suffix="array_record",
  )
  (*_, last) = template.sharded_filepaths(shards)
  assert identity.shard_name(shards - 1) == last.name


@hypothesis.settings(max_examples=25)
@hypothesis.given(n=st.integers(1, 2000), rows=st.integers(1, 600))
def test_shards_are_a_partition_of_the_source(n, rows):
  identity = make_identity(n=n, shard_rows=rows)
  ranges = map(identity.shard_range, range(identity.num_shards))
  assert [i for r in ranges for i in r] == list(range(n))


def test_shard_range_has_no_shard_beyond_the_last():
  with pytest.raises(ValueError, match="shard_index=3"):
    make_identity().shard_range(3)


@pytest.mark.parametrize(
  "dtype", [np.float16, np.float32, ml_dtypes.bfloat16], ids=str
)
@pytest.mark.parametrize("d", [1, 2, 7, 192, 1280])
def test_stored_norm_is_the_norm(dtype, d):
  x = np.random.default_rng(d).standard_normal((50, d)).astype(dtype)
  exact = np.linalg.norm(x.astype(np.longdouble), axis=1)
  error = np.abs(stored_norm(x) - exact) / exact
  assert stored_norm(x).dtype == np.float32
  assert error.max() < 2**-23


def test_stored_norm_does_not_overflow_between_the_steps():
  x = np.full((1, 4), 1e30, np.float32)
  np.testing.assert_allclose(stored_norm(x), 2e30, rtol=1e-6)


def _block(rows, d=3):
  return Block(
    embedding=np.zeros((rows, d), np.float16),
    embedding_norm=np.zeros(rows, np.float32),
    label=np.zeros(rows, np.int32),
    example_id=np.arange(rows, dtype=np.int64),
  )


def test_a_record_of_another_shape_is_refused_without_quoting_it():
  record = BlockCodec(4, "float16").encode(_block(3, d=4))
  with pytest.raises(ValueError, match=r"number of rows|not a block") as caught:
    BlockCodec(3, "float16").decode(record)
  assert caught.value.__cause__ is None
  assert len(str(caught.value)) < 80


@pytest.mark.parametrize("record", [b"", b"junk", b"\x0a\x00"])
def test_junk_is_not_a_block(record):
  with pytest.raises(ValueError, match="not a block"):
    BlockCodec(3, "float16").decode(record)


def test_decoded_arrays_are_views():
  codec = BlockCodec(3, "float16")
  block = codec.decode(codec.encode(_block(256)))
  assert not block.embedding.flags.owndata
  assert not block.embedding.flags.writeable
