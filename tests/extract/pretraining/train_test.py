import pathlib

import jax
import numpy as np
import pytest

from oneshot_dp.configs.extract_config import BackboneConfig, PreprocessConfig
from oneshot_dp.extract import pretraining
from oneshot_dp.extract.backbones.registry import load_backbone
from oneshot_dp.extract.backbones.vit import glyph_vit
from oneshot_dp.extract.backbones.vit.glyph_vit import NAME, WEIGHTS
from oneshot_dp.extract.pretraining import network
from oneshot_dp.extract.pretraining.fonts import find_typefaces
from oneshot_dp.extract.pretraining.glyphs import (
  Glyphs,
  printed_glyphs,
  written_glyphs,
)
from oneshot_dp.extract.pretraining.train import Settings, accuracy, train
from tests.extract.processes import python

pytestmark = pytest.mark.usefixtures("quick_compilation")

HOME = pathlib.Path(pretraining.__file__).parent
TINY = Settings(
  out=pathlib.Path("unused"), steps=12, batch_size=32, learning_rate=3e-3
)


@pytest.fixture(scope="module")
def held_out(quick_compilation) -> Glyphs:
  faces = [f for f in find_typefaces(packages=()) if f.is_held_out]
  return printed_glyphs(faces[:3])


@pytest.fixture(scope="module")
def trained(quick_compilation):
  """A network of one narrow layer, which compiles in a third of the time."""
  variant = glyph_vit._NETWORK.clone(width=16, depth=1, mlp_dim=32)
  ones_and_zeros = written_glyphs(2, seed=0)
  keep = np.isin(ones_and_zeros.labels, (0, 1))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(glyph_vit, "_NETWORK", variant)
    patch.setattr(network, "_init", jax.jit(network.Classifier().init))
    # Unlike the default's, random bits of this kind compile at once.
    start = network.initial_params(jax.random.key(0, impl="unsafe_rbg"))
    return train(TINY, start, ones_and_zeros[keep])


@pytest.mark.slow
def test_the_embedded_weights_know_typefaces_that_they_never_saw(held_out):
  params = network.load(pathlib.Path(str(WEIGHTS)))
  assert accuracy(params, held_out) > 0.6


@pytest.mark.slow
def test_a_few_steps_lower_the_loss(trained):
  _, losses = trained
  assert len(losses) == TINY.steps
  assert losses[-3:].mean() < 0.7 * losses[0]


def test_what_is_written_is_weights_of_the_backbone(tmp_path):
  params = network.load(pathlib.Path(str(WEIGHTS)))
  path = tmp_path / "weights.safetensors"
  network.save(params, path)
  backbone = load_backbone(
    BackboneConfig(name=NAME, weights=str(path)), PreprocessConfig()
  )
  kernel = np.asarray(params["embedding"]["kernel"])
  np.testing.assert_array_equal(
    backbone.params["embedding"]["kernel"], kernel.astype(np.float16)
  )
  assert "head" not in backbone.params


@pytest.mark.slow
def test_the_backbone_computes_what_was_trained():
  """The logits of the training network, from the embedding of a job."""
  params = network.load(pathlib.Path(str(WEIGHTS)))
  backbone = load_backbone(BackboneConfig(name=NAME), PreprocessConfig())
  pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32), np.uint8)
  rgb = np.repeat(pixels[..., None], 3, axis=-1)
  embedding = np.asarray(jax.jit(backbone.apply)(backbone.params, rgb))
  images = (pixels / 255).astype(np.float32)
  logits = jax.jit(network.logits)(params, images)
  np.testing.assert_allclose(
    embedding @ params["head"]["kernel"], logits, atol=1e-4
  )


@pytest.mark.slow
def test_nothing_here_knows_scikit_learn():
  """Neither by name, nor by what it imports."""
  for module in HOME.glob("*.py"):
    assert "sklearn" not in module.read_text()
  code = (
    "import sys; import oneshot_dp.extract.pretraining.train; "
    "seen = {'sklearn', 'oneshot_dp.extract.sources.digits'}; "
    "sys.exit(not seen.isdisjoint(sys.modules))"
  )
  python(code)


def test_nothing_of_the_product_imports_it():
  """It is not in the wheel."""
  for module in HOME.parents[1].rglob("*.py"):
    if HOME not in module.parents:
      assert "import extract.pretraining" not in module.read_text()
      assert "extract.pretraining import" not in module.read_text()
