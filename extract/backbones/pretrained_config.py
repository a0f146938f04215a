"""The preprocessing that belongs to a weights file, read from a config.json.

A backbone's name says how images of its published weights are prepared. Other
weights of the same network may need other means or another crop, and nothing
would fail without them: accuracy would silently be lower. timm writes
beside every model.safetensors of its own a config.json that says what it needs.
"""

import json
import math
import pathlib
from typing import Any, Literal, NamedTuple

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.extract import files
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.weights import hub_file_beside

CONFIG_FILE = "config.json"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_IMAGE_SIZE = 1 << 14


class PublishedConfig(NamedTuple):
  """What the config.json beside a weights file says.

  Attributes:
    preprocessing: how images are prepared.
    place: of the config.json, for messages.
    timm: architecture and tag of the weights in timm, such as
      "vit_base_patch16_clip_224.openai"; "" if it does not say them.
  """

  preprocessing: Preprocessing
  place: str
  timm: str


def published_config(
  location: str, weights: pathlib.Path
) -> PublishedConfig | None:
  """Reads how images are prepared for a weights file, and what it is.

  Args:
    location: of the weights, as it was given: of an hf:// location, the
      config.json of the same repository and revision is read; of a path, the
      one in the same folder.
    weights: the weights file on this machine.

  Returns:
    What it says; None if there is no config.json, or none that timm wrote.

  Raises:
    InputError: the config.json cannot be read, or asks for what is not
      supported here.
    RunError: the Hub cannot be reached.
  """
  # Beside the weights: in the same repository and revision, or in the same
  # folder. From a bucket nothing but the weights is fetched.
  if location.startswith("hf://"):
    place = f"{location.rpartition('/')[0]}/{CONFIG_FILE}"
    path = hub_file_beside(location, CONFIG_FILE)
  elif "://" in location:
    return None
  else:
    path = weights.with_name(CONFIG_FILE)
    place = str(path)
  if path is None or not path.exists():
    return None
  shown = escaped(place)[:500]
  data = files.read_regular(path, _MAX_CONFIG_BYTES)
  try:
    content = json.loads(data)
  except (ValueError, RecursionError) as error:
    raise InputError(f"{shown} is not valid JSON: fix or remove it.") from error
  if not isinstance(content, dict) or "pretrained_cfg" not in content:
    return None
  try:
    config = content["pretrained_cfg"]
    if not isinstance(config, dict):
      raise TypeError(f"it is a {type(config).__name__}")
    preprocessing = preprocessing_from_timm(config)
  except (KeyError, TypeError, ValueError, OverflowError) as error:
    message = escaped(" ".join(str(error).split()))[:200]
    raise InputError(
      f"{shown}: its pretrained_cfg is not a preprocessing that is supported"
      f" here ({type(error).__name__}: {message}); fix or remove the file."
    ) from error
  timm = ""
  if content.get("architecture") and config.get("tag"):
    timm = f"{content['architecture']}.{config['tag']}"
  return PublishedConfig(preprocessing, shown, timm)


def preprocessing_from_timm(config: dict[str, Any]) -> Preprocessing:
  """The preprocessing by which timm evaluates a model.

  timm resizes to floor(size / crop_pct), the shorter side if crop_mode is
  "center" and both sides if it is "squash", then crops the central square. If a
  model is evaluated at a larger size than it was trained at, that is taken.

  Args:
    config: timm's `pretrained_cfg`.

  Raises:
    KeyError, TypeError, ValueError, OverflowError: something is missing, or not
      supported here.
  """
  # Numbers from a file that anybody may have written decide how much memory an
  # image takes: all of them are bounded.
  size = config.get("test_input_size") or config["input_size"]
  share = config.get("test_crop_pct") or config.get("crop_pct") or 1.0
  _, height, width = size
  if height != width or not isinstance(height, int):
    raise ValueError(f"input_size {size!a}")
  if not 0 < height <= _MAX_IMAGE_SIZE or not 0.1 <= share <= 1:
    raise ValueError(f"input_size {size!a}, crop_pct {share!a}")
  mode = config.get("crop_mode") or "center"
  if mode not in ("center", "squash"):
    raise ValueError(f"crop_mode {mode!a}")
  resize: int | Literal["square"] = math.floor(height / share)
  if mode == "squash" and resize == height:
    resize = "square"
  interpolation = config["interpolation"]
  if interpolation not in ("bilinear", "bicubic"):
    raise ValueError(f"interpolation {interpolation!a}")
  return Preprocessing(
    image_size=height,
    resize=resize,
    keep_aspect=mode == "center",
    resample=interpolation,
    mean=_channels(config["mean"], minimum=0.0),
    std=_channels(config["std"], minimum=1e-3),
  )


def _channels(values: Any, minimum: float) -> tuple[float, float, float]:
  """Three numbers in units of [0, 1], one for each color."""
  red, green, blue = [float(value) for value in values]
  for value in (red, green, blue):
    if not minimum <= value <= 1:
      raise ValueError(f"mean or std {values!a}")
  return red, green, blue
