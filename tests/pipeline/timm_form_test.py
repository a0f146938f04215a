import dataclasses
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import PreprocessConfig
from oneshot_dp.extract.backbones.backbone import load_backbone
from oneshot_dp.extract.images import Preprocessing, resize_and_crop
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.pipeline.timm_form import timm_files
from tests.pipeline import image_heads

NAMES = tuple("0123456789")


def random_head(d, k=10, unit_norm=False):
  rng = np.random.default_rng(3)
  # A bias as large as what it is added to, so that both decide, and the norm.
  bias_scale = 5.0
  if unit_norm:
    bias_scale = 1.0
  return LinearHead(
    kernel=rng.normal(size=(d, k)).astype(np.float32),
    bias=rng.normal(size=k).astype(np.float32) * bias_scale - 10,
    unit_norm=unit_norm,
  )


def read_back(folder, backbone, images, unit_norm):
  """Writes timm's form, and compares what is in it, class by class."""
  head = random_head(backbone.feature_dim, unit_norm=unit_norm)
  files = timm_files(backbone, head, NAMES)
  file = folder / "model.safetensors"
  file.write_bytes(files["model.safetensors"])
  again = load_backbone(
    backbone.name,
    str(file),
    embedding=backbone.embedding,
    compute_dtype="float32",
  )
  for one, other in zip(
    jax.tree.leaves(backbone.params), jax.tree.leaves(again.params), strict=True
  ):
    np.testing.assert_array_equal(one, other)
  x = image_heads.embeddings(again, images)
  if unit_norm:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
  tensors = safetensors.numpy.load_file(file)
  logits = x @ tensors["head.weight"].T + tensors["head.bias"]
  expected = image_heads.classes_of(
    head, image_heads.embeddings(backbone, images)
  )
  assert len(set(expected)) > 2
  assert logits.argmax(axis=1).tolist() == expected
  # Neither library opens a head of norm 1 without its code.
  assert ("open_model.py" in files) == unit_norm
  config = json.loads(files["config.json"])
  assert ("architecture" in config) == (not unit_norm)


@pytest.mark.slow
@pytest.mark.parametrize("unit_norm", [False, True])
def test_a_network_read_back_gives_100_classes_in_100(tmp_path, unit_norm):
  backbone = load_backbone("glyph_vit", None, None, "cls", "float32")
  backbone = dataclasses.replace(backbone, timm="vit_tiny_patch16_224")
  read_back(tmp_path, backbone, image_heads.digits()[0][:100], unit_norm)


@pytest.mark.long
def test_a_published_vit_read_back_gives_its_classes(tmp_path, shared_data):
  weights = str(shared_data / "vit_ti16_in1k.npz")
  backbone = load_backbone("vit_ti16", weights, compute_dtype="float32")
  with np.load(shared_data / "cifar10_images.npz") as npz:
    images = npz[npz.files[0]][:20]
  read_back(tmp_path, backbone, images, unit_norm=True)


def test_words_are_those_of_timm():
  backbone = dataclasses.replace(
    image_heads.glyph_vit(), timm="vit_small_patch16_224", embedding="cls"
  )
  head = random_head(backbone.feature_dim)

  def config(**changes):
    changed = dataclasses.replace(backbone, **changes)
    return json.loads(timm_files(changed, head, NAMES)["config.json"])

  found = config()
  assert found["architecture"] == "vit_small_patch16_224"
  assert found["num_classes"] == 10
  assert found["label_names"] == list(NAMES)
  assert found["model_args"] == {"img_size": 32, "global_pool": "token"}
  of_pixels = found["pretrained_cfg"]
  assert of_pixels["classifier"] == "head"
  assert of_pixels["crop_mode"] == "squash"
  assert config(embedding="mean")["model_args"] == {
    "img_size": 32,
    "global_pool": "avg",
    "fc_norm": False,
  }
  assert config(embedding="map")["model_args"]["global_pool"] == "map"
  for side, resize in ((224, 248), (224, 256), (306, 320), (448, 449)):
    cropped = Preprocessing(image_size=side, resize=resize)
    of_pixels = config(preprocessing=cropped)["pretrained_cfg"]
    assert int(side / of_pixels["crop_pct"]) == resize
    assert of_pixels["crop_mode"] == "center"


@pytest.mark.parametrize(
  "changes",
  [
    {"timm": None},
    {"embedding": "last4_cls"},
    {"embedding": "cls_mean"},
    {"timm": "nfnet_f0", "network": None},
  ],
)
def test_what_timm_has_no_classifier_of_is_refused(changes):
  backbone = dataclasses.replace(
    image_heads.glyph_vit(),
    **({"timm": "vit_small_patch16_224", "embedding": "cls"} | changes),
  )
  with pytest.raises(InputError, match="timm"):
    timm_files(backbone, random_head(backbone.feature_dim), NAMES)


_OPEN = """
import json, sys, numpy as np, torch
folder, unit_norm = sys.argv[1], sys.argv[2] == "True"
import timm
images = np.load(folder + "/../shown.npy")
found = []
config = json.load(open(folder + "/config.json"))
of = config["pretrained_cfg"]
pixels = (torch.tensor(images).permute(0, 3, 1, 2) / 255
  - torch.tensor(of["mean"])[:, None, None]
) / torch.tensor(of["std"])[:, None, None]
if unit_norm:
  sys.path.insert(0, folder)
  from open_model import open_model
  model = open_model()
  resolved = timm.data.resolve_model_data_config(model)
  for name in "crop_pct", "crop_mode", "interpolation":
    assert resolved[name] == of[name], (name, resolved[name])
  assert list(resolved["input_size"]) == of["input_size"]
  assert list(resolved["mean"]) == of["mean"]
  try:  # nobody opens it without its code by mistake
    timm.create_model("local-dir:" + folder, pretrained=True)
    raise SystemExit("timm opened it")
  except KeyError:
    pass
  try:
    from transformers import AutoConfig
    AutoConfig.from_pretrained(folder, trust_remote_code=False)
    raise SystemExit("transformers opened it")
  except ValueError:
    pass
else:
  model = timm.create_model("local-dir:" + folder, pretrained=True).eval()
with torch.no_grad():
  found.append(model(pixels.float()).argmax(1).tolist())
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification
how = {"trust_remote_code": True} if unit_norm else {}
model = AutoModelForImageClassification.from_pretrained(folder, **how).eval()
processor = AutoImageProcessor.from_pretrained(folder, **how)
with torch.no_grad():
  found.append(model(pixel_values=pixels.float()).logits.argmax(1).tolist())
  photos = [Image.fromarray(image) for image in images]
  through = processor(photos, return_tensors="pt")
  found.append(model(**through).logits.argmax(1).tolist())
  assert model.config.id2label[3] == "3"
print(json.dumps(found))
"""
SIDE = 112
FAMILIES = {
  "vit_ti16": "vit_tiny_patch16_224",
  "deit_ti16": "deit_tiny_patch16_224",
  "dinov2_s14": "vit_small_patch14_dinov2",
  "dinov2_reg_s14": "vit_small_patch14_reg4_dinov2",
  "siglip_b16": "vit_base_patch16_siglip_224",
  "bit_r50x1": "resnetv2_50x1_bit",
}


@pytest.mark.slow
@pytest.mark.parametrize("unit_norm", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_timm_and_transformers_open_it(tmp_path, name, unit_norm):
  """100 of 100 classes, of random weights that timm itself wrote."""
  timm = pytest.importorskip("timm")
  pytest.importorskip("transformers")
  pytest.importorskip("torch").manual_seed(0)
  args = {"img_size": SIDE}
  if name.startswith("bit"):  # takes any
    args = {}
  model = timm.create_model(FAMILIES[name], num_classes=0, **args)
  state = {key: value.numpy() for key, value in model.state_dict().items()}
  rng = np.random.default_rng(0)
  for key, value in state.items():  # scales of LayerScale are 1e-5, say
    state[key] = value + 0.02 * rng.normal(size=value.shape).astype("f4")
  safetensors.numpy.save_file(state, tmp_path / "weights.safetensors")
  images = rng.integers(0, 256, (100, 8, 8, 3)).astype(np.uint8)
  images = np.kron(images, np.ones((1, SIDE // 8, SIDE // 8, 1), np.uint8))
  backbone = load_backbone(
    name,
    str(tmp_path / "weights.safetensors"),
    compute_dtype="float32",
    preprocess=PreprocessConfig(image_size=SIDE, resize="square"),
  )
  shown = np.stack([resize_and_crop(i, backbone.preprocessing) for i in images])
  apply = jax.jit(backbone.apply)
  embedding = np.concatenate(
    [apply(backbone.params, jax.numpy.asarray(s)) for s in np.split(shown, 10)]
  )
  head = random_head(backbone.feature_dim, unit_norm=unit_norm)
  # Random networks say nearly the same of all images: what differs decides.
  rows = embedding
  if unit_norm:
    rows = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
  mean = rows.mean(axis=0)
  head = dataclasses.replace(head, bias=-(mean @ head.kernel))
  folder = tmp_path / "model"
  folder.mkdir()
  for file, content in timm_files(backbone, head, NAMES).items():
    (folder / file).write_bytes(content)
  np.save(tmp_path / "shown.npy", shown)
  paths = [path for path in sys.path if "site-packages" in path]
  found = subprocess.run(
    [sys.executable, "-c", _OPEN, str(folder), str(unit_norm)],
    capture_output=True,
    text=True,
    env={"PYTHONPATH": ":".join(paths), "HOME": str(tmp_path)},
    check=False,
  )
  assert found.returncode == 0, found.stderr[-3000:]
  expected = image_heads.classes_of(head, embedding)
  assert len(set(expected)) > 2
  of_timm, of_transformers, of_photos = json.loads(found.stdout)
  assert of_timm == expected
  assert of_transformers == expected
  assert of_photos == expected
