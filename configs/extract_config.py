"""What an extraction is: images, a backbone, and a cache of its embeddings.

Some are known by name, as data: `oneshot-dp extract NAME --out CACHE`.

    imagenet_*   the paper's five: the shorter side resized to 384, the central
                 256 x 256 cropped; `--views 16` is its augmented variant.
                 Mehta et al. (TMLR 2023), appendix D
    cifar*       TFDS downloads them
    digits       the demo's: 1,797 digits of 8 x 8 pixels that come along

Of these only `digits` was run: ImageNet and its weights were not at hand. The
weights were trained on ImageNet-21k, which contains ImageNet-1k's own
photographs: the runs repeat the paper's, but no epsilon covers what the
backbone has seen of them. The paper's ResNet-50x4 was never published: give
--weights. ViT-H/14 does not see the last 4 rows and columns of 256 pixels, as
in the public code.
"""

import dataclasses
import difflib
import pathlib
import re
from typing import Any, Literal

from oneshot_dp.configs.errors import InputError, check_name, check_positive

OnDecodeError = Literal["fail", "skip"]
EmbeddingDtype = Literal["float16", "float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16"]
NumClassesSource = Literal["class_names", "flag", "labels (treated as public)"]

EXAMPLE = "example"
"""The privacy unit where every row is one of its own."""
# It is printed, and goes into receipts and model cards.
_UNIT_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9 _-]{0,39}")


def check_unit_name(name: str) -> None:
  """InputError: it cannot name a privacy unit coarser than an example."""
  if name == EXAMPLE or not _UNIT_NAME.fullmatch(name):
    raise InputError(
      f'unit name {name[:80]!a} must be a short public one such as "user" or'
      f' "patient", and not "{EXAMPLE}".'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
  """Which labelled images; the location says of what kind they are.

  Attributes:
    location: a folder of a folder for each class, or of folders train/, test/ …
      of such; FILE.npz; Parquet files or WebDataset tars, one, several or a
      folder of them, also as shards/{00..12}.tar or shards/*.tar; gs:// and
      s3:// URLs of any of these; tfds:NAME.
    split: train, test …; default: the only one that there is.
    name: public name of the data set; default: the location's last part.
    image, label: column, array, feature or (of tars) extension that has them;
      default: the only one that can be, `image`; the ClassLabel, `label`, cls.
    class_names: all classes, public, where the data do not name them, or where
      a class may be without an image.
    num_classes: K, where nothing names the classes: they are 0 to K - 1.
    units: whose each image is, where somebody may have many. Of files: FILE.csv
      whose header is "file," and the unit's public name (file,patient), or a
      regular expression with one group of that name ('/(?P<patient>[^/_]+)_')
      that is searched for in the path. Else a column, array or feature, whose
      name is the unit's.
    data_dir: where TFDS keeps its data; default: TFDS's own.
  """

  location: tuple[str, ...]
  split: str | None = None
  name: str | None = None
  image: str | None = None
  label: str | None = None
  class_names: tuple[str, ...] = ()
  num_classes: int | None = None
  units: str | None = None
  data_dir: str | None = None

  def __post_init__(self):
    check_positive("--num-classes", self.num_classes)
    for name in self.location or ("",):
      check_name("location", name)
    for name in (*self.class_names, *filter(None, [self.name])):
      check_name("name", name)
    if "%" in (self.split or ""):
      raise InputError(
        f"--split {self.split!a}: parts are chosen when a cache is read, by"
        " `train --rows '[:80%]'`; extract the whole split."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
  """Changes to the backbone's own `Preprocessing`.

  Attributes:
    image_size: side of the square that the backbone takes, pixels.
    resize: a number: the shorter side is resized to this many pixels, then the
      central square cropped. "square": both sides are resized straight to
      `image_size`. Default: the backbone's own, in proportion.
  """

  image_size: int | None = None
  resize: int | Literal["square"] | None = None

  def __post_init__(self):
    check_positive("--image-size", self.image_size)
    if isinstance(self.resize, int):
      check_positive("--resize", self.resize)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractConfig:
  """One extraction: a split of a source through a backbone into a cache.

  Attributes:
    backbone: a listed name, or FILE.py:FUNCTION, a function of the user's own.
    weights: a path, gs:// or s3:// URL, or hf://OWNER/REPO[@REVISION]/FILE;
      default: those that the name stands for.
    weights_sha256: what their SHA-256 must be, in hexadecimal.
    embedding: where in the backbone it is taken; default: its usual place.
    compute_dtype: of the matrix products; normalisation and softmax stay in
      float32. Default: bfloat16 on a TPU or GPU, float32 on a CPU.
    views: the mean over so many random views of each image (inception crop and
      flip) is stored, instead of the embedding of its centre.
    batch_size: images per device call, all local devices together; default: 16
      for each CPU device, 64 for each TPU chip, 256 for each GPU.
    shard_rows: images per shard; a kill loses one shard of work.
    on_decode_error: "skip" leaves out images that cannot be decoded.
    stall_seconds: a job on Beam ends when no shard was finished for so long.
  """

  source: SourceConfig
  backbone: str = "vit_b16"
  weights: str | None = None
  weights_sha256: str | None = None
  embedding: str | None = None
  compute_dtype: ComputeDtype | None = None
  preprocess: PreprocessConfig = PreprocessConfig()
  views: int | None = None
  batch_size: int | None = None
  embedding_dtype: EmbeddingDtype = "float16"
  shard_rows: int = 2048
  on_decode_error: OnDecodeError = "fail"
  stall_seconds: int = 3600

  def __post_init__(self):
    for field, value in vars(self).items():
      if isinstance(value, int):
        check_positive(f"--{field.replace('_', '-')}", value)


def _job(place: str, backbone: str, **more: Any) -> ExtractConfig:
  source = SourceConfig(location=(place,))
  return ExtractConfig(source=source, backbone=backbone, **more)


_DIGITS = str(pathlib.Path(__file__).with_name("digits.npz"))
_CROP = PreprocessConfig(image_size=256, resize=384)
_PAPER: dict[str, Any] = {"compute_dtype": "bfloat16", "preprocess": _CROP}
EXPERIMENTS: dict[str, ExtractConfig] = {
  f"imagenet_{name}": _job("tfds:imagenet2012", name, **_PAPER)
  for name in ("vit_b16", "vit_l16", "vit_h14", "bit_r50x4", "bit_r152x4")
} | {
  "cifar10_vit_b16": _job("tfds:cifar10", "vit_b16"),
  "cifar10_vit_ti16": _job("tfds:cifar10", "vit_ti16"),
  "cifar100_vit_b16": _job("tfds:cifar100", "vit_b16"),
  "digits": _job(_DIGITS, "glyph_vit"),
}


def load_experiment(name: str) -> ExtractConfig:
  """An experiment by its name; InputError: there is none."""
  if name not in EXPERIMENTS:
    near = difflib.get_close_matches(name, EXPERIMENTS, n=3)
    raise InputError(
      f"{name[:80]!a} is no file, folder or URL, nor an experiment:"
      f" {'did you mean' if near else 'there are'}"
      f" {', '.join(near or EXPERIMENTS)}."
    )
  return EXPERIMENTS[name]
