"""Vectors of a public start."""

import hashlib
from typing import Any

import numpy as np

from oneshot_dp.extract import places
from oneshot_dp.pipeline.public_start import read_start
from tests.pipeline.sample_heads import sample_info


def test_the_digest_of_a_start_is_of_the_vectors_that_are_used(
  tmp_path, monkeypatch
):
  """A file that is exchanged while it is read is not two files in one."""
  info = sample_info()
  vectors: Any = {}
  others: Any = {}
  for index, name in enumerate(info.class_names):
    vectors[name] = np.eye(info.feature_dim, dtype=np.float32)[index]
    others[name] = 2 * vectors[name]
  file = tmp_path / "start.npz"
  np.savez(file, **vectors)
  digest = hashlib.sha256(file.read_bytes()).hexdigest()
  read = places.read

  def read_and_exchange(place):
    content = read(place)
    np.savez(file, **others)
    return content

  monkeypatch.setattr(places, "read", read_and_exchange)
  start = read_start(file, info)

  assert start.sha256 == digest
  assert start.vectors.max() == 1
