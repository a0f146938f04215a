"""What to extract, as frozen dataclasses.

An experiment, a file in `configs/experiments`, has a function `get_config()`
that returns an `ExtractConfig`; a flag can change every field.
"""

import dataclasses
import re
from typing import Literal

from oneshot_dp.configs.errors import InputError, check_positive

Resample = Literal["bilinear", "bicubic", "lanczos"]
OnDecodeError = Literal["fail", "skip"]
EmbeddingDtype = Literal["float16", "float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16"]

EXAMPLE_UNIT = "example"
"""The privacy unit where every row is one of its own."""
POSITION_IDS = "position"
"""Where an example_id comes from if it only says where in its split a row is.

It is no name of the image then: another copy of the data may be in another
order."""


# It is printed, and goes into receipts and model cards.
_UNIT_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9 _-]{0,39}")


def check_unit_name(name: str) -> None:
  """InputError: it cannot name a privacy unit coarser than an example."""
  if name == EXAMPLE_UNIT or not _UNIT_NAME.fullmatch(name):
    raise InputError(
      f'unit name {name!r} must be a short public one such as "user" or'
      f' "patient", and not "{EXAMPLE_UNIT}".'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsSource:
  """A TensorFlow Datasets data set, read as ArrayRecord.

  Attributes:
    name: TFDS name, with config and version if wanted ("cifar10",
      "imagenet2012:5.*.*", "my_data/config:1.0.0").
    data_dir: where TFDS keeps its data; default: TFDS's own.
    image_key: the feature that holds the image; default: the only one.
    label_key: the feature that holds the class; default: the only one.
    unit_key: the integer feature that says whose an example is, where the
      privacy unit is coarser than an example; its name is the unit's.
    id_key: the text feature whose last number is to be the example_id
      ("file_name" of imagenet2012: ILSVRC2012_val_00000017.JPEG is 17), needed
      for --real-labels; no two may be equal. Default: the position.
  """

  name: str
  data_dir: str | None = None
  image_key: str | None = None
  label_key: str | None = None
  unit_key: str | None = None
  id_key: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolderSource:
  """Image files in `root/<class>/<file>`, or `root/<split>/<class>/<file>`.

  Attributes:
    root: the folder, or its gs:// or s3:// URL. Without folders named after
      splits there is one split, `all`.
    name: public name of the data set; default: the last part of `root`.
    id_from_name: take the last number of each file's name as the example_id
      (ILSVRC2012_val_00000017.JPEG is 17), needed for --real-labels; no two may
      be equal. Default: the position.
    class_names: all classes, public, where some may have no image in a split;
      empty is the folders' names, each of which must then have one.
    units: whose each image is, where somebody may have many: FILE.csv of paths
      relative to `root`, whose header is "file," and the unit's public name
      (file,patient); or a regular expression that finds whose in those paths,
      by one group of that name: '(?P<patient>[^/_]+)_'.
  """

  root: str
  name: str | None = None
  id_from_name: bool = False
  class_names: tuple[str, ...] = ()
  units: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArraysSource:
  """Images in an npz: `image` uint8 [n, h, w, 3 or 1], `label` int [n].

  With several splits in one file the arrays are `<split>_image`,
  `<split>_label`. `class_names` [K] (str) is needed unless `num_classes` is
  given; `example_id` [n] (int64) is optional and defaults to the row.

  Attributes:
    path: the npz file, or its gs:// or s3:// URL.
    name: public name of the data set; default: the file's stem.
    num_classes: K, where the file has no `class_names`.
    unit_name: the array [n], integers or strings, that says whose each image
      is, where somebody may have many; its name ("user", "patient" ...) is
      public. One that is called `unit_id` is the same by any name.
  """

  path: str
  name: str | None = None
  num_classes: int | None = None
  unit_name: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSource:
  """Parquet files, Hugging Face data sets on disk, or WebDataset tars.

  Attributes:
    path: FILE.parquet, .arrow or .tar, or a folder that has such at some depth:
      what `save_to_disk` wrote, a snapshot of the Hub's cache, tars; or a
      gs:// or s3:// URL. Names say the split (train-00000-of-00002.parquet,
      train/); else all is one, `all`.
    name: public name of the data set; None is the last part of `path`.
    image_key: the column of bytes of image files, or of structs that have them
      as `bytes`; of tars the extension. None if there is just one, or `image`.
    label_key: the column of class indices or class names; of tars the
      extension, or a field of the json. None is the ClassLabel, `label` or cls.
    class_names: of label 0, 1, …, where the files do not name the classes.
    num_classes: K, where nothing names them.
    unit_name: the column (of tars, extension or field of the json) of integers
      or strings that says whose an image is, where somebody may have many; its
      name is public.
  """

  path: str
  name: str | None = None
  image_key: str | None = None
  label_key: str | None = None
  class_names: tuple[str, ...] = ()
  num_classes: int | None = None
  unit_name: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnlabelledSource:
  """Images to predict the classes of: nothing is known of them.

  Attributes:
    paths: image files, folders of them at any depth, npz files with an array
      `image` (uint8 [n, h, w, 3 or 1]), Parquet, Arrow and tar files as of
      `TableSource`; gs:// and s3:// URLs of any of these.
  """

  paths: tuple[str, ...]


# A new source is a dataclass above and a name here.
Source = (
  ArraysSource | ImageFolderSource | TableSource | TfdsSource | UnlabelledSource
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
  """Changes to the preprocessing that the backbone's weights were made for.

  None leaves what the backbone's reference does (`oneshot-dp backbones`).

  Attributes:
    image_size: side of the square that the backbone takes, pixels.
    resize: a number: first resize the shorter side to this many pixels, then
      crop the central square. "square": resize both sides straight to
      `image_size`. "crop": as the reference if it crops, else the shorter side
      to 8/7 of `image_size`, and crop. Default: as the reference, in proportion
      to `image_size`.
    keep_aspect: whether a numeric `resize` keeps the aspect ratio; if not, both
      sides are resized to it.
    resample: the filter.
    antialias: whether it is widened when shrinking, as Pillow does; bilinear
      can do without, as TensorFlow does by default.
    mean, std: per-channel, in units of [0, 1]; (x/255 - mean)/std.
  """

  image_size: int | None = None
  resize: int | Literal["square", "crop"] | None = None
  keep_aspect: bool | None = None
  resample: Resample | None = None
  antialias: bool | None = None
  mean: tuple[float, float, float] | None = None
  std: tuple[float, float, float] | None = None

  def __post_init__(self):
    check_positive("image_size", self.image_size)
    if self.std is not None and min(self.std) <= 0:
      raise InputError(f"std={self.std} must be positive.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneConfig:
  """A frozen public feature extractor.

  Attributes:
    name: a name that `oneshot-dp backbones` lists (`vit_b16`, `bit_r50x4`,
      `dinov2_b14` …), or `FILE.py:FUNCTION`, your own function (params,
      images [b, s, s, 3]) to embeddings [b, d].
    weights: the pretrained weights: a path, https://, gs://BUCKET/FILE or
      hf://OWNER/REPO/FILE; npz or safetensors. Not needed where the backbone
      needs none, or brings its own.
    weights_sha256: what the SHA-256 of the weights must be, in hexadecimal;
      default: the file that is there (its hash is recorded in any case).
    embedding: where in the backbone it is taken; default: the first that
      `oneshot-dp backbones` lists.
    compute_dtype: dtype of the matrix products; normalisation and softmax
      stay in float32. Default: bfloat16 where the job is started on a TPU or
      GPU, and float32 on a CPU.
  """

  name: str = "vit_b16"
  weights: str | None = None
  weights_sha256: str | None = None
  embedding: str | None = None
  compute_dtype: ComputeDtype | None = None

  def __post_init__(self):
    if self.weights_sha256 is not None and self.weights is None:
      raise InputError(
        f"weights_sha256={self.weights_sha256} is of no file: give"
        " backbone.weights too."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractConfig:
  """One extraction job: a split of a source through a backbone into a cache.

  Attributes:
    source: where the images are.
    split: the split to read ("train", "test"), or about so many percent of it
      ("train[:80%]", "train[80%:]"), chosen by each image's own bytes; of TFDS
      also "train[:1000]" and "train+test", by position.
    backbone: what makes the embeddings.
    preprocess: what the backbone is shown, where that is not its reference.
    views: store the mean over this many random views of each image (inception
      crop and flip) instead of the embedding of its centre; default: the
      centre.
    view_min_area: smallest part of the image's area that a view may show;
      default: 0.08.
    batch_size: images (or views) per device call, all local devices together;
      default: 16 for each CPU device, 64 for each TPU chip, 256 for each GPU.
    embedding_dtype: precision of the embeddings in the cache.
    shard_rows: rows per shard; a kill loses at most one shard of work.
    decode_threads: threads that decode and resize; default: one per core.
    on_decode_error: "fail" stops the job at an image that cannot be decoded;
      "skip" leaves it out and records its id in the cache.
    stall_seconds: the job is stopped when nothing was finished for so long: no
      image by workers in this process, no shard by others.
  """

  source: Source
  split: str = "train"
  backbone: BackboneConfig = BackboneConfig()
  preprocess: PreprocessConfig = PreprocessConfig()
  views: int | None = None
  view_min_area: float | None = None
  batch_size: int | None = None
  embedding_dtype: EmbeddingDtype = "float16"
  shard_rows: int = 2048
  decode_threads: int | None = None
  on_decode_error: OnDecodeError = "fail"
  stall_seconds: int = 3600

  def __post_init__(self):
    for field in (
      *("views", "batch_size", "shard_rows"),
      *("decode_threads", "stall_seconds"),
    ):
      check_positive(field, getattr(self, field))
    for field in ("unit_name", "unit_key"):
      if (unit := getattr(self.source, field, None)) is not None:
        check_unit_name(unit)
    if self.view_min_area is not None and self.views is None:
      raise InputError(
        f"view_min_area={self.view_min_area} is for views: give views too."
      )
    if not 0 < self.min_area <= 1:
      raise InputError(f"view_min_area={self.min_area} is not in (0, 1].")

  @property
  def min_area(self) -> float:
    """`view_min_area`, or the share of "Going Deeper with Convolutions"."""
    return 0.08 if self.view_min_area is None else self.view_min_area
