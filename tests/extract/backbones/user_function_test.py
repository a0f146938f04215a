"""A user's own function as the backbone."""

import hashlib
import os
import pathlib

import jax
import numpy as np
import pytest

from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.backbones.backbone import load_backbone
from tests.extract.refusals import refused

CODE = """
from __future__ import annotations
import dataclasses
import jax.numpy as jnp
from flax import linen as nn

def embed(params, images):
  return images.mean(axis=(1, 2)) @ params["kernel"]

def plain(params, images):
  return images.mean(axis=(1, 2)).astype(jnp.bfloat16)

def flat(params, images):
  return images.ravel()

def centred(params, images):
  means = images.mean(axis=(1, 2))
  return means - means.mean(axis=0)

@dataclasses.dataclass
class Options:
  width: int = 5

class Net(nn.Module):
  width: int

  @nn.compact
  def __call__(self, x):
    return nn.Dense(self.width, use_bias=False)(x.mean(axis=(1, 2)))

def flax(params, images):
  return Net(Options().width).apply({"params": {"Dense_0": params}}, images)
"""
SMALL = PreprocessConfig(image_size=8)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
KERNEL = np.arange(15, dtype=np.float32).reshape(3, 5)


@pytest.fixture
def code(tmp_path) -> pathlib.Path:
  (tmp_path / "mine.py").write_text(CODE)
  return tmp_path / "mine.py"


def load(code: pathlib.Path, function: str, *weights, **fields):
  name = f"{code}:{function}"
  return load_backbone(name, *weights, preprocess=SMALL, **fields)


def sha256(path: pathlib.Path) -> str:
  return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("function", ["embed", "flax"])
def test_a_function_with_weights(code, tmp_path, function):
  np.savez(tmp_path / "w.npz", kernel=KERNEL)
  weights = str(tmp_path / "w.npz")
  backbone = load(code, function, weights)
  found = np.asarray(jax.jit(backbone.apply)(backbone.params, IMAGES))
  mean = (IMAGES / 127.5 - 1).mean(axis=(1, 2))
  np.testing.assert_allclose(found, mean @ KERNEL, atol=1e-5)
  assert backbone.feature_dim == 5
  assert backbone.name == f"mine.py:{function}"  # of no machine's path
  assert backbone.code_sha256 == sha256(code)
  assert backbone.weights_sha256 == sha256(tmp_path / "w.npz")
  code.write_text(CODE + "# changed\n")
  assert load(code, function, weights).code_sha256 == sha256(code)
  with refused("SHA-256"):
    load(code, function, weights, "0" * 64)


def test_what_is_none_and_what_needs_no_weights(code):
  backbone = load(code, "plain")
  assert (backbone.weights_sha256, backbone.feature_dim) == (None, 3)
  assert jax.jit(backbone.apply)({}, IMAGES).dtype == np.float32
  for asked in ({"embedding": "cls"}, {"compute_dtype": "bfloat16"}):
    with refused("decides itself"):
      load(code, "plain", **asked)
  for function, said in (
    ("absent", r"mine\.py:absent: AttributeError: .* no attribute 'absent'"),
    ("embed", r"mine\.py:embed: KeyError: 'kernel'"),
    ("flat", r"\[384\] for 2 images; it must give \[b, d\]"),
    # Removing one example would move all the others: no ε would hold.
    ("centred", "depends on what else is in its batch"),
  ):
    with refused(said):
      load(code, function)
  for text, said in (
    ("def embed(:", "SyntaxError"),
    ("raise RuntimeError('one\\nline\\x1b[31m')", "RuntimeError: one line"),
  ):
    code.write_text(text)
    with refused(said):
      load(code, "embed")
  with refused(r"absent\.py cannot be read: No such file"):
    load(code.with_name("absent.py"), "embed")
  code.unlink()
  os.mkfifo(code)
  with refused("not a regular file"):
    load(code, "embed")
