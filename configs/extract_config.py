"""The request for an extraction: images, a backbone, and how to embed them.

Some experiments have a name: `oneshot-dp extract NAME --out CACHE`.

    imagenet_*   the paper's five: the shorter side resized to 384, the central
                 256 x 256 cropped; `--views 16` is its augmented variant.
                 Mehta et al. (TMLR 2023), appendix D
    cifar*       TFDS downloads them
    digits       the demo's: 1,797 digits of 8 x 8 pixels, in the package

Only `digits` has been run: ImageNet and its weights were not at hand. The
weights were trained on ImageNet-21k, which contains the photographs of
ImageNet-1k. So the runs repeat the paper's, but no epsilon covers what the
backbone has seen of these photographs. The paper's ResNet-50x4 was never
published: give --weights. ViT-H/14 does not see the last 4 rows and columns of
256 pixels, as in the public code.
"""

import dataclasses
import difflib
import pathlib
import re
from typing import Literal

from oneshot_dp.configs.errors import (
  InputError,
  check_name,
  check_positive,
  check_words,
)

OnDecodeError = Literal["fail", "skip"]
EmbeddingDtype = Literal["float16", "float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16"]
NumClassesSource = Literal["class_names", "flag", "labels (treated as public)"]

MAX_PIXELS = 1 << 26
"""The most pixels an image may have without --max-pixels: 8,192 x 8,192."""
BIT_DEPTHS = (8, 10, 12, 14, 16)
EXAMPLE = "example"
"""The privacy unit if each row is a unit of its own."""
SAME_IMAGE = "same-image"
"""The value of --units for which all rows of one image are a unit."""
DISTINCT_IMAGE = "distinct image"
"""The name of that unit."""
FIXED_GRAPH = " (fixed graph: who is in which image is public)"
"""Suffix of a unit's name where an image may belong to several units. Which
images are whose is then not protected, and every receipt says so."""
NO_OWNER = -1
"""Pads the owners of an image that has fewer of them than another."""
MAX_OWNERS = 1000
"""The most owners of one image. Each row has room for as many owners as the
image with the most has."""
# Unit names are printed, and go into receipts and model cards.
_UNIT_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9 _-]{0,39}")


def check_unit_name(name: str) -> None:
  """Raises InputError unless it can name a unit of several examples."""
  is_taken = name in (EXAMPLE, DISTINCT_IMAGE)
  if is_taken or not _UNIT_NAME.fullmatch(name):
    raise InputError(
      f'unit name {name[:80]!a} must be a short public one such as "user" or'
      f' "patient", and not "{EXAMPLE}" or "{DISTINCT_IMAGE}".'
    )


def check_unit(unit: str) -> None:
  """Raises InputError unless it is a privacy unit, as caches name them."""
  if unit not in (EXAMPLE, DISTINCT_IMAGE):
    check_unit_name(unit_without_relation(unit))


def unit_without_relation(unit: str) -> str:
  """The name of a unit, without the suffix of units that share images."""
  return unit.removesuffix(FIXED_GRAPH)


def has_several_owners(unit: str) -> bool:
  """Whether one example may belong to several units of this name."""
  return unit.endswith(FIXED_GRAPH)


def check_bit_depth(bit_depth: int | None) -> None:
  """Raises InputError for a bit depth that 16-bit files do not have."""
  if bit_depth is not None and bit_depth not in BIT_DEPTHS:
    depths = ", ".join(map(str, BIT_DEPTHS))
    raise InputError(f"bit_depth={bit_depth!a} must be one of {depths}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
  """Where labeled images are; the location says what kind of source it is.

  Attributes:
    location: a folder with one folder per class, or with folders train/, test/
      and so on of such; FILE.npz; Parquet files or WebDataset tars: one,
      several or a folder of them, also as shards/{00..12}.tar or shards/*.tar;
      gs:// and s3:// URLs of any of these; tfds:NAME;
      hf://datasets/OWNER/NAME[@REVISION][/FOLDER], a data set of Parquet files
      on the Hugging Face Hub.
    split: which split to read (default: the only one).
    name: public name of the data set (default: the last part of the location;
      of the Hub, OWNER/NAME).
    image: column, array, feature or (of tars) extension that holds the images
      (default: the only one that can, or `image`).
    label: the same for the labels (default: the ClassLabel, `label`, or cls).
    class_names: all classes, public, where the data do not name them, or where
      a class may have no image.
    num_classes: K, where nothing names the classes: they are 0 to K - 1.
    units: who owns each image, where somebody may own several. For files:
      FILE.csv with the header "file," and the public name of the unit
      (file,patient), or a regular expression with one group of that name
      ('/(?P<patient>[^/_]+)_') that is searched for in the path. For tables: a
      column, array or feature, which also names the unit. "same-image": all
      examples of the same bytes of an image are one unit.
    data_dir: where TFDS keeps its data (default: where TFDS does).

  Messages about images call these fields as the flags of `oneshot-dp extract`
  are called: `--class-names` is `class_names`.

  Raises:
    InputError: a number is below 1, a name cannot be printed, a string is given
      where several are wanted, or `split` asks for a part of a split.
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
    check_positive("num_classes", self.num_classes)
    check_words("location", self.location)
    check_words("class_names", self.class_names)
    if not self.location:
      raise InputError("location is empty: give a folder, file or URL.")
    for place in self.location:
      check_name("location", place)
    # Names come back in messages, receipts and pages: none may forge a line of
    # these.
    for class_name in self.class_names:
      check_name("name", class_name)
    if self.name:
      check_name("name", self.name)
    # TFDS would cut the split by positions, and one image more would move
    # others over the border. Parts are chosen by content, when rows are read.
    if self.split is not None and "%" in self.split:
      raise InputError(
        f"split={self.split!a}: parts are chosen when a cache is read, by"
        " `train --rows '[:80%]'`; extract the whole split."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
  """Changes to the backbone's own `Preprocessing`.

  Attributes:
    image_size: side, in pixels, of the square that the backbone takes.
    resize: a number: the shorter side is resized to this many pixels, then the
      central square is cropped. "square": both sides are resized straight to
      `image_size`. Default: the backbone's own, in proportion.
    bit_depth: how many bits of each sample of 16-bit files are used: 8, 10, 12,
      14 or 16. Default: 16, and files that may hold fewer are refused.

  Raises:
    InputError: a number is below 1, or no bit depth.
  """

  image_size: int | None = None
  resize: int | Literal["square"] | None = None
  bit_depth: int | None = None

  def __post_init__(self):
    check_bit_depth(self.bit_depth)
    check_positive("image_size", self.image_size)
    if isinstance(self.resize, int):
      check_positive("resize", self.resize)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractConfig:
  """One extraction: a split of a source, through a backbone, into a cache.

  Attributes:
    source: where the images are.
    backbone: a listed name, or FILE.py:FUNCTION, a function of the user's own.
    weights: a path, gs:// or s3:// URL, or hf://OWNER/REPO[@REVISION]/FILE
      (default: the backbone's published weights).
    weights_sha256: the SHA-256 that the file must have, in hexadecimal.
    embedding: the layer that is read (default: the backbone's usual one).
    compute_dtype: dtype of matrix products; normalization and softmax stay in
      float32 (default: bfloat16 on a TPU or GPU, float32 on a CPU).
    preprocess: changes to the backbone's own preprocessing.
    max_pixels: images that have more are refused, before they are decoded.
    views: store the mean over this many random views of each image (inception
      crop and flip) instead of the embedding of its center.
    batch_size: images per device call, all local devices together (default: 16
      for each CPU device, 64 for each TPU chip, 256 for each GPU).
    embedding_dtype: dtype that embeddings are stored in.
    shard_rows: images per shard; a kill loses one shard of work.
    on_decode_error: "fail" stops at an image that cannot be decoded; "skip"
      leaves it out.
    stall_seconds: a job on Beam is stopped if no shard finishes for so long.

  Raises:
    InputError: a number is below 1.
  """

  source: SourceConfig
  backbone: str = "vit_b16"
  weights: str | None = None
  weights_sha256: str | None = None
  embedding: str | None = None
  compute_dtype: ComputeDtype | None = None
  preprocess: PreprocessConfig = PreprocessConfig()
  max_pixels: int = MAX_PIXELS
  views: int | None = None
  batch_size: int | None = None
  embedding_dtype: EmbeddingDtype = "float16"
  shard_rows: int = 2048
  on_decode_error: OnDecodeError = "fail"
  stall_seconds: int = 3600

  def __post_init__(self):
    check_positive("max_pixels", self.max_pixels)
    check_positive("views", self.views)
    check_positive("batch_size", self.batch_size)
    check_positive("shard_rows", self.shard_rows)
    check_positive("stall_seconds", self.stall_seconds)


def _experiment(location: str, backbone: str) -> ExtractConfig:
  source = SourceConfig(location=(location,))
  return ExtractConfig(source=source, backbone=backbone)


def _paper_experiment(backbone: str) -> ExtractConfig:
  """ImageNet as the paper embeds it."""
  return ExtractConfig(
    source=SourceConfig(location=("tfds:imagenet2012",)),
    backbone=backbone,
    compute_dtype="bfloat16",
    preprocess=PreprocessConfig(image_size=256, resize=384),
  )


_DIGITS = str(pathlib.Path(__file__).with_name("digits.npz"))
EXPERIMENTS: dict[str, ExtractConfig] = {
  "imagenet_vit_b16": _paper_experiment("vit_b16"),
  "imagenet_vit_l16": _paper_experiment("vit_l16"),
  "imagenet_vit_h14": _paper_experiment("vit_h14"),
  "imagenet_bit_r50x4": _paper_experiment("bit_r50x4"),
  "imagenet_bit_r152x4": _paper_experiment("bit_r152x4"),
  "cifar10_vit_b16": _experiment("tfds:cifar10", "vit_b16"),
  "cifar10_vit_ti16": _experiment("tfds:cifar10", "vit_ti16"),
  "cifar100_vit_b16": _experiment("tfds:cifar100", "vit_b16"),
  "digits": _experiment(_DIGITS, "glyph_vit"),
}


def load_experiment(name: str) -> ExtractConfig:
  """Returns an experiment by its name; InputError: it does not exist."""
  if name in EXPERIMENTS:
    return EXPERIMENTS[name]
  similar = difflib.get_close_matches(name, EXPERIMENTS, n=3)
  if similar:
    advice = f"did you mean {', '.join(similar)}?"
  else:
    advice = f"experiments are {', '.join(EXPERIMENTS)}."
  # A misspelled path is more likely than a misspelled experiment.
  raise InputError(
    f"{name[:80]!a} does not exist: there is no such file or folder here, and"
    f" it is neither a URL nor an experiment; {advice}"
  )
