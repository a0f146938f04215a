"""`oneshot-dp export`: the same classes elsewhere."""

import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oneshot_dp.extract.backbones.backbone import (
  Architecture,
  Backbone,
  apply_function,
  output_shape,
)
from oneshot_dp.extract.backbones.registry import find_architecture
from oneshot_dp.extract.backbones.resnet.bit_resnet import BitResNet
from oneshot_dp.extract.backbones.resnet.convolution import standardize
from oneshot_dp.extract.images.preprocess import Preprocessing, prepare
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.pipeline.serving import hugging_face
from oneshot_dp.pipeline.serving.export import STABLEHLO_FILE, to_stablehlo
from tests.pipeline.command_line import ROOT, fails, succeeds

SCRIPT = pathlib.Path(__file__).parent / "run_transformers.py"
PYTHON = "ONESHOT_DP_TRANSFORMERS_PYTHON"
SQUARE = Preprocessing(image_size=32, mean=(0.4, 0.5, 0.6))
CROP = dataclasses.replace(SQUARE, resize=36)
SMALL = {"width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 4, "patch": 8}
SWIGLU = SMALL | {"mlp_dim": 88}  # what DINOv2 makes of width 32
BIT = {"blocks": (1, 1, 1, 1), "width": 32}
CLASSES = ("cat", "dog", "owl", "bat")
# Backbone, embedding, changes to the network, images, head at norm 1.
CASES = [
  ("vit_ti16", "cls", SMALL, SQUARE, False),
  ("vit_ti16", "cls", SMALL, SQUARE, True),
  ("vit_ti16", "pre_logits", SMALL, SQUARE, False),
  ("deit_ti16", "cls", SMALL, CROP, False),
  ("deit_distilled_ti16", "cls", SMALL, SQUARE, False),
  ("dinov2_s14", "cls", SMALL, CROP, True),
  ("dinov2_s14", "mean", SMALL, SQUARE, True),
  ("dinov2_g14", "cls_mean", SWIGLU, SQUARE, False),
  ("dinov2_reg_s14", "mean", SMALL, SQUARE, False),
  ("siglip_b16", "mean", SMALL, SQUARE, True),
  ("bit_r50x1", "pooled", BIT, SQUARE, False),
  ("bit_r50x1", "pooled", BIT, SQUARE, True),
]


def small(case: int, monkeypatch) -> tuple[Backbone, LinearHead]:
  """A network of drawn weights with the parts of a published one."""
  name, embedding, parts, preprocessing, unit_norm = CASES[case]
  changes: dict[str, Any] = dict(parts)
  network = find_architecture(name).build(embedding, "float32")
  module = network.clone(**changes)
  monkeypatch.setattr(Architecture, "build", lambda *_: module)
  rng = np.random.default_rng(case)
  side = preprocessing.image_size
  shapes = jax.eval_shape(
    module.init, jax.random.key(0), np.zeros((1, side, side, 3), np.float32)
  )["params"]

  def draw(path, leaf):
    kind = path[-1].key
    value = rng.standard_normal(leaf.shape).astype(np.float32)
    if kind == "scale":
      return 1 + value / 4
    if isinstance(module, BitResNet) and kind == "kernel":
      return standardize(value, 1e-10)
    return value / np.float32(math.sqrt(max(math.prod(leaf.shape[:-1]), 8)))

  params = jax.tree_util.tree_map_with_path(draw, shapes)
  apply = jax.jit(apply_function(module, preprocessing))
  dim = output_shape(apply, params, side)[1]
  backbone = Backbone(
    name=name,
    embedding=embedding,
    feature_dim=dim,
    preprocessing=preprocessing,
    weights_sha256=None,
    compute_dtype="float32",
    params=params,
    apply=apply,
  )
  head = LinearHead(
    kernel=rng.standard_normal((dim, 4)).astype(np.float32),
    bias=(rng.standard_normal(4) / 4 - 10).astype(np.float32),
    unit_norm=unit_norm,
  )
  return backbone, head


def images_of(case: int) -> np.ndarray:
  """Smooth images: a filter's last bit must not decide a class.

  Networks of drawn convolutions are worse yet: their images are not resized.
  """
  rng = np.random.default_rng(100 + case)
  coarse = rng.integers(0, 256, (100, 6, 6, 3), dtype=np.uint8)
  if CASES[case][1] == "pooled":
    return coarse.repeat(6, axis=1).repeat(6, axis=2)[:, :32, :32]
  return coarse.repeat(8, axis=1).repeat(7, axis=2)


def logits_of(backbone: Backbone, head: LinearHead, images) -> np.ndarray:
  shown = np.stack([prepare(each, backbone.preprocessing) for each in images])
  embedding = backbone.apply(backbone.params, jnp.asarray(shown))
  bias = head.bias - head.bias.max()
  return np.asarray(dataclasses.replace(head, bias=bias).logits(embedding))


@pytest.fixture
def python() -> str:
  """The Python that has torch and transformers."""
  found = os.environ.get(PYTHON)
  if not found:
    pytest.skip(f"${PYTHON} names no Python that has torch and transformers")
  return found


@pytest.mark.slow
def test_the_documented_layer_of_torch_says_the_same(python, tmp_path):
  text = (ROOT / "linear_dp/README.md").read_text()
  (snippet,) = re.findall(r"```python\n(import torch\n.*?)```", text, re.S)
  rng = np.random.default_rng(0)
  arrays = {
    name: rng.standard_normal(shape).astype(np.float32)
    for name, shape in {"kernel": (5, 3), "bias": 3, "rows": (9, 5)}.items()
  }
  np.savez(tmp_path / "arrays.npz", allow_pickle=False, **arrays)
  script = (
    "import numpy, types\narrays = numpy.load('arrays.npz')\n"
    "head = types.SimpleNamespace(head=types.SimpleNamespace("
    "kernel=arrays['kernel'], bias=arrays['bias']))\n"
    f"{snippet}rows = torch.tensor(arrays['rows'])\n"
    "unit = torch.nn.functional.normalize(rows)\n"  # as the text says
    "found = [layer(x).detach().numpy() for x in (rows, unit)]\n"
    "numpy.save('logits.npy', numpy.stack(found))"
  )
  subprocess.run([python, "-c", script], cwd=tmp_path, check=True)
  rows = jnp.asarray(arrays.pop("rows"))
  for unit_norm, found in enumerate(np.load(tmp_path / "logits.npy")):
    head = LinearHead(unit_norm=bool(unit_norm), **arrays)
    np.testing.assert_allclose(found, head.logits(rows), atol=1e-5)


@pytest.mark.slow
def test_transformers_says_the_same(python, tmp_path, monkeypatch):
  expected = {}
  for case in range(len(CASES)):
    with monkeypatch.context() as patch:
      backbone, head = small(case, patch)
      folder = tmp_path / f"{case:02d}"
      (folder / "model").mkdir(parents=True)
      hugging_face.write_model(folder / "model", backbone, head, CLASSES)
    np.save(folder / "images.npy", images_of(case))
    expected[folder] = logits_of(backbone, head, images_of(case))
  subprocess.run(
    [python, SCRIPT, tmp_path],
    check=True,
    env=os.environ
    | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "../hf")},
  )
  for (folder, logits), case in zip(expected.items(), CASES, strict=True):
    found = np.load(folder / "logits.npy")
    same = (found.argmax(axis=1) == logits.argmax(axis=1)).sum()
    error = np.abs(found - logits).max() / logits.std()
    assert (same, error < 0.01, case) == (100, True, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [2, len(CASES) - 1])
def test_stablehlo_says_the_same(case, monkeypatch):
  backbone, head = small(case, monkeypatch)
  images = images_of(case)[:9]
  shown = np.stack([prepare(each, backbone.preprocessing) for each in images])
  content = to_stablehlo(backbone, head)
  assert b".py" not in content  # no path of the machine that it was made on
  exported = jax.export.deserialize(bytearray(content))
  assert set(exported.platforms) == {"cpu", "cuda", "tpu"}
  expected = logits_of(backbone, head, images)
  for batch in (1, 9):  # of any size
    found = exported.call(jnp.asarray(shown[:batch]))
    np.testing.assert_allclose(found, expected[:batch], rtol=1e-3, atol=1e-3)
  assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


@pytest.mark.slow
def test_the_command(place, tmp_path, capsys):
  """What leaves: no path, no ledger's folder, nothing that the head had not."""
  words = ["export", place / "unit_norm", "--to", tmp_path / "model"]
  out, _ = succeeds(capsys, *words, "--json")
  answer = json.loads(out)
  # random_patches is nothing that transformers has.
  assert answer["files"] == ["README.md", STABLEHLO_FILE, "receipt.json"]
  assert "transformers has no model" in answer["no_transformers"]
  receipt = (tmp_path / "model/receipt.json").read_bytes()
  assert receipt == (place / "unit_norm/receipt.json").read_bytes()
  card = (tmp_path / "model/README.md").read_text()
  assert card.startswith("---\nlibrary_name: jax\n")
  for said in ("epsilon = 8", "was not scored", "no probabilities"):
    assert said in card
  for path in (tmp_path / "model").iterdir():
    assert str(place).encode() not in path.read_bytes()
  assert "already holds something" in fails(capsys, *words)


def test_heads_without_noise_stay(finished_sweep, tmp_path, capsys):
  head = finished_sweep.path / "heads/baseline-NOT-PRIVATE"
  said = fails(capsys, "export", head, "--to", tmp_path / "model")
  assert "NOT PRIVATE: it is not exported" in said
