"""What to run, as frozen dataclasses.

An experiment file (`configs/<name>.py`) has one function, `get_config()`, that
returns an `ExtractConfig`; every field can be overridden on the command line.
This module is the only one of ours that any package may import (with
`configs.errors`).
"""

import dataclasses
import math
import re
from typing import Any, Literal, get_args

from configs.errors import InputError

Resample = Literal["bilinear", "bicubic", "lanczos"]
OnDecodeError = Literal["fail", "skip"]
EmbeddingDtype = Literal["float16", "float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16"]
OptimizerName = Literal["lamb", "adam", "momentum"]
LossName = Literal["softmax", "sigmoid"]
MinibatchName = Literal["poisson", "partition"]
SamplingName = Literal["full", MinibatchName]
InitName = Literal["zero", "normal", "lecun"]
AblationAxis = Literal["optimizer", "init", "epochs", "batch", "clip"]
MethodName = Literal[OptimizerName, "whitened", "least-squares", "multi-step"]
HeadName = Literal[MethodName, "auto"]
RelationName = Literal["add-or-remove-one", "replace-one", "replace-special"]
ReleaseOrder = Literal["nested", "independent"]
PublicUse = Literal["mean", "mean-and-covariance"]

EXAMPLE_UNIT = "example"
"""The privacy unit where every row is one of its own."""
POSITION_IDS = "position"
"""Where an example_id comes from if it only says where in its split a row is.

It is no name of the image then: another copy of the data may be in another
order."""


# It is printed, and goes into receipts and model cards.
_UNIT_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9 _-]{0,39}")


def _check_positive(name: str, value: int | None) -> None:
  if value is not None and value < 1:
    raise InputError(f"{name}={value} must be at least 1.")


def check_unit_name(name: str) -> None:
  """Refuses what cannot name a privacy unit coarser than an example.

  Raises:
    InputError: it is not a short name, or is "example".
  """
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
    data_dir: where TFDS keeps its data; None is TFDS's own default.
    image_key: the feature that holds the image; None if there is just one.
    label_key: the feature that holds the class; None if there is just one.
    unit_key: the integer feature that says whose an example is, where the
      privacy unit is coarser than an example; its name is the unit's.
    id_key: the text feature whose last number is to be the example_id
      ("file_name" of imagenet2012: ILSVRC2012_val_00000017.JPEG is 17), needed
      for --real-labels; no two may be equal. None is the position.
  """

  name: str
  data_dir: str | None = None
  image_key: str | None = None
  label_key: str | None = None
  unit_key: str | None = None
  id_key: str | None = None

  def __post_init__(self):
    if self.unit_key is not None:
      check_unit_name(self.unit_key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolderSource:
  """Image files in `root/<class>/<file>`, or `root/<split>/<class>/<file>`.

  Attributes:
    root: the folder. Without folders named after splits, every split reads
      the same images.
    name: public name of the data set; None is the last part of `root`.
    id_from_name: take the last number of each file's name as the example_id
      (ILSVRC2012_val_00000017.JPEG is 17), needed for --real-labels; no two may
      be equal. Default: the position.
  """

  root: str
  name: str | None = None
  id_from_name: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArraysSource:
  """Images in an npz: `image` uint8 [n, h, w, 3 or 1], `label` int [n].

  With several splits in one file the arrays are `<split>_image`,
  `<split>_label`. `class_names` [K] (str) is needed unless `num_classes` is
  given; `example_id` [n] (int64) is optional and defaults to the row, and so is
  `unit_id` [n] (int64): whose each image is, where the privacy unit is coarser
  than an example.

  Attributes:
    path: the npz file.
    name: public name of the data set; None is the file's stem.
    num_classes: K, where the file has no `class_names`.
    unit_name: what `unit_id` numbers: "user", "patient" ...; public.
  """

  path: str
  name: str | None = None
  num_classes: int | None = None
  unit_name: str | None = None

  def __post_init__(self):
    if self.unit_name is not None:
      check_unit_name(self.unit_name)


Source = TfdsSource | ImageFolderSource | ArraysSource


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
  """Changes to the preprocessing that the backbone's weights were made for.

  None leaves what the backbone's reference does (`oneshot-dp backbones`).

  Attributes:
    image_size: side of the square that the backbone takes, pixels.
    resize: a number: first resize the shorter side to this many pixels, then
      crop the central square. "square": resize both sides straight to
      `image_size`. None: as the reference, in proportion to `image_size`.
    keep_aspect: whether a numeric `resize` keeps the aspect ratio; if not, both
      sides are resized to it.
    resample: the filter.
    antialias: whether it is widened when shrinking, as Pillow does; bilinear
      can do without, as TensorFlow does by default.
    mean, std: per-channel, in units of [0, 1]; (x/255 - mean)/std.
  """

  image_size: int | None = None
  resize: int | Literal["square"] | None = None
  keep_aspect: bool | None = None
  resample: Resample | None = None
  antialias: bool | None = None
  mean: tuple[float, float, float] | None = None
  std: tuple[float, float, float] | None = None

  def __post_init__(self):
    _check_positive("image_size", self.image_size)
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
      hf://OWNER/REPO/FILE; npz or safetensors. None only where the backbone
      needs none, or brings its own.
    weights_sha256: what the SHA-256 of the weights must be, in hexadecimal;
      None accepts the file that is there (its hash is recorded in any case).
    embedding: the layer to read; None is the backbone's first in `oneshot-dp
      backbones`.
    compute_dtype: dtype of the matrix products; normalisation and softmax
      stay in float32. None is bfloat16 where the job is started on a TPU or
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
    split: the split to read ("train", "test", "train[:10%]" for TFDS).
    backbone: what makes the embeddings.
    preprocess: what the backbone is shown, where that is not its reference.
    views: store the mean over this many random views of each image (inception
      crop and flip) instead of the embedding of its centre; None is the
      centre.
    view_min_area: smallest part of the image's area that a view may show;
      None is 0.08.
    batch_size: images (or views) per device call, all local devices together;
      None is 16 for each CPU device, 64 for each TPU chip, 256 for each GPU.
    embedding_dtype: precision of the embeddings in the cache.
    shard_rows: rows per shard; a kill loses at most one shard of work.
    decode_threads: threads that decode and resize; None is one per core.
    on_decode_error: "fail" stops the job at an image that cannot be decoded;
      "skip" leaves it out and records its id in the cache.
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

  def __post_init__(self):
    for field in ("views", "batch_size", "shard_rows", "decode_threads"):
      _check_positive(field, getattr(self, field))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepsConfig:
  """How a head of several steps is trained.

  Attributes:
    optimizer: that follows the noisy gradients.
    epochs: passes over the rows; None is 60 on full batches (100 where there is
      little noise), 10 on others.
    batch_size: rows of a step, on average; None is all of them.
    sampling: of smaller batches. "poisson": every row is in a batch or not by
      itself, which the accounting makes use of; "partition": each epoch deals
      all rows out once, as shuffling does, which it cannot.
    learning_rate: None is a rule of n, K and the noise.
    l2_clip_norm: C, the largest norm of one example's gradient; None is 0.15
      for rows of norm 1, and 1 for others.
    loss: cross-entropy of a softmax, or of a sigmoid for each class.
    initial_bias: of every sigmoid, not trained; None is that of a probability
      of 1/K. The paper's is -10.
    unit_norm: bring every embedding to norm 1.
    init: "zero"; "normal" of the deviation init_scale; "lecun", normal of
      variance 1/d.
    init_scale: of "normal".
    init_seed: of random weights; public.
    ema_decay: return the exponential moving average of the weights after every
      step, of this decay; None is the last weights.
  """

  optimizer: OptimizerName = "momentum"
  epochs: int | None = None
  batch_size: int | None = None
  sampling: MinibatchName | None = None
  learning_rate: float | None = None
  l2_clip_norm: float | None = None
  loss: LossName = "softmax"
  initial_bias: float | None = None
  unit_norm: bool = True
  init: InitName = "zero"
  init_scale: float | None = None
  init_seed: int = 0
  ema_decay: float | None = None

  def __post_init__(self):
    for field in ("epochs", "batch_size"):
      _check_positive(field, getattr(self, field))
    for field in ("learning_rate", "l2_clip_norm"):
      value = getattr(self, field)
      if value is not None and not 0 < value < math.inf:
        raise InputError(f"{field}={value} must be positive and finite.")
    if (self.batch_size is None) != (self.sampling is None):
      raise InputError(
        f"batch_size={self.batch_size} and sampling={self.sampling} go"
        " together: give both, or neither for full batches."
      )
    if (self.init == "normal") != (self.init_scale is not None):
      raise InputError(
        f"init_scale={self.init_scale} with init={self.init!r}: give the scale"
        " of normal weights, and only theirs."
      )
    if self.init_seed < 0:
      raise InputError(f"init_seed={self.init_seed} must be 0 or more.")
    if self.initial_bias is not None and not math.isfinite(self.initial_bias):
      raise InputError(f"initial_bias={self.initial_bias} must be finite.")
    if self.initial_bias is not None and self.loss != "sigmoid":
      raise InputError(
        f"initial_bias={self.initial_bias} is for loss='sigmoid'; a softmax"
        " does not see it."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
  """How a head is trained, privacy aside.

  Attributes:
    head: "lamb" (the paper's), "adam" or "momentum": the optimizer of one step;
      "whitened": private whitening and then gradient descent, which has no
      settings; "least-squares": a linear discriminant in closed form from one
      pass, which has none either, and of which all epsilons together cost the
      largest; "multi-step": gradient descent with every choice open, see
      steps; "auto": "whitened", or "lamb" where a unit may have many rows. What
      follows is for one step only, and steps for several.
    l2_clip_norm: C, the largest norm of one example's gradient.
    initial_bias: b0, the bias that every class starts from.
    train_bias: train the bias too (the kernel always is).
    learning_rate: scales the logits; which class wins does not depend on it.
    eps: eps of LAMB and Adam, in units of the mean gradient.
    eps_in_noise_sds: eps as a multiple of the noise in the gradient instead;
      1 to 4 helps at small epsilon.
    steps: of "multi-step".
  """

  head: HeadName = "lamb"
  l2_clip_norm: float = 1.0
  initial_bias: float = -10.0
  train_bias: bool = False
  learning_rate: float = 1.0
  eps: float = 1e-6
  eps_in_noise_sds: float | None = None
  steps: StepsConfig = StepsConfig()

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name == "head" or value == field.default:
        continue
      if field.name == "steps" and self.head != "multi-step":
        raise InputError(
          f"settings of steps are for head='multi-step', not {self.head!r}."
        )
      if field.name != "steps" and not self.is_one_step:
        why = "it has settings of its own, see steps"
        if self.head != "multi-step":
          why = "it sets everything from public sizes"
        raise InputError(
          f"{field.name}={value} is for heads of one step, not for"
          f" head={self.head!r}: {why}."
        )

  def settings(self) -> dict[str, Any]:
    """The fields that count for the head, as JSON."""
    values = dataclasses.asdict(self)
    steps = values.pop("steps")
    if self.is_one_step:
      return values
    chosen: dict[str, Any] = {"head": self.head}
    return chosen | ({"steps": steps} if self.head == "multi-step" else {})

  @property
  def is_one_step(self) -> bool:
    """Whether the head is an optimizer's first step."""
    return self.head in get_args(OptimizerName)

  @property
  def can_nest(self) -> bool:
    """Whether heads of all epsilons can be made of nested releases."""
    return self.is_one_step or self.head == "least-squares"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
  """What the privacy guarantee is about, epsilon aside.

  Attributes:
    delta: δ of each head; choose it well below 1/n.
    neighboring_relation: data sets that differ by an example added or removed,
      by one replaced (twice the sensitivity), or by one replaced with nothing.
    noise_seed: research only: draw the noise from this seed, which makes
      everything NOT PRIVATE and says so everywhere. Default: the operating
      system's entropy.
  """

  delta: float
  neighboring_relation: RelationName = "add-or-remove-one"
  noise_seed: int | None = None
