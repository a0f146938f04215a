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

OTHER_SHA256 = "0".zfill(64)
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

def centered(params, images):
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


@pytest.fixture
def weights(tmp_path) -> str:
  np.savez(tmp_path / "w.npz", kernel=KERNEL)
  return str(tmp_path / "w.npz")


@pytest.mark.parametrize("function", ["embed", "flax"])
def test_function_gets_normalized_images_and_its_weights(
  code, weights, function
):
  backbone = load(code, function, weights)
  embeddings = np.asarray(jax.jit(backbone.apply)(backbone.params, IMAGES))
  mean = (IMAGES / 127.5 - 1).mean(axis=(1, 2))
  np.testing.assert_allclose(embeddings, mean @ KERNEL, atol=1e-5)
  assert backbone.feature_dim == 5


def test_function_is_identified_by_its_code_and_weights(code, weights):
  backbone = load(code, "embed", weights)
  assert backbone.name == "mine.py:embed"  # without this machine's folders
  assert backbone.code_sha256 == sha256(code)
  assert backbone.weights_sha256 == sha256(pathlib.Path(weights))


def test_function_in_changed_code_is_another_backbone(code, weights):
  load(code, "embed", weights)
  code.write_text(CODE + "# changed\n")
  assert load(code, "embed", weights).code_sha256 == sha256(code)


def test_function_with_weights_of_another_sha256_is_refused(code, weights):
  with refused("SHA-256"):
    load(code, "embed", weights, OTHER_SHA256)


def test_function_without_weights_gives_float32_embeddings(code):
  backbone = load(code, "plain")
  assert backbone.weights_sha256 is None
  assert backbone.feature_dim == 3
  assert jax.jit(backbone.apply)({}, IMAGES).dtype == np.float32


@pytest.mark.parametrize(
  "setting", [{"embedding": "cls"}, {"compute_dtype": "bfloat16"}]
)
def test_function_takes_no_settings_of_a_network(code, setting):
  with refused("decides itself"):
    load(code, "plain", **setting)


@pytest.mark.parametrize(
  ("function", "message"),
  [
    ("absent", r"mine\.py:absent: AttributeError: .* no attribute 'absent'"),
    ("embed", r"mine\.py:embed: KeyError: 'kernel'"),
    ("flat", r"\[384\] for 2 images; it must give \[b, d\]"),
  ],
)
def test_function_that_fails_is_refused_in_one_line(code, function, message):
  with refused(message):
    load(code, function)


def test_function_of_a_whole_batch_is_refused(code):
  """Removing one example would move all the others: no ε would hold."""
  with refused("depends on what else is in its batch"):
    load(code, "centered")


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("def embed(:", "SyntaxError"),
    ("raise RuntimeError('one\\nline\\x1b[31m')", "RuntimeError: one line"),
  ],
)
def test_file_that_cannot_be_run_is_refused_in_one_line(code, text, message):
  code.write_text(text)
  with refused(message):
    load(code, "embed")


def test_file_that_does_not_exist_is_refused(code):
  with refused(r"absent\.py cannot be read: No such file"):
    load(code.with_name("absent.py"), "embed")


def test_fifo_in_place_of_the_file_is_refused(code):
  code.unlink()
  os.mkfifo(code)
  with refused("not a regular file"):
    load(code, "embed")
