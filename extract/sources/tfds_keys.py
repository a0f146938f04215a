"""Which features of a TFDS data set are image, label, unit and id."""

import numpy as np
import tensorflow_datasets as tfds

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.example import chosen


def image_key(
  config: extract_config.TfdsSource, features: tfds.features.FeaturesDict
) -> str:
  """Returns the key of the one image, or of the image that was asked for."""
  candidates = [
    key
    for key, feature in features.items()
    if isinstance(feature, tfds.features.Image)
    # A mask of labels per pixel is an image too, for TFDS.
    and not isinstance(feature, tfds.features.LabeledImage)
  ]
  if not candidates:
    raise InputError(
      f"{config.name} has no Image at the top level of its features, only "
      f"{_listed(features)}: choose a data set of images."
    )
  key = chosen(config.name, "image_key", config.image_key, candidates)
  if features[key].np_dtype != np.uint8:
    raise InputError(
      f"{config.name}: the image {key!r} is {features[key].np_dtype.__name__}, "
      f"and only uint8 can be read: images are {', '.join(candidates)}."
    )
  return key


def label_key(
  config: extract_config.TfdsSource, features: tfds.features.FeaturesDict
) -> str:
  """Returns the key of the one class label, or of the label asked for."""
  candidates = [
    key
    for key, feature in features.items()
    if isinstance(feature, tfds.features.ClassLabel) and feature.num_classes
  ]
  if not candidates:
    raise InputError(
      f"{config.name} has no ClassLabel with its classes at the top level of "
      f"its features, only {_listed(features)}: the classes must be public, so "
      "they are not read off the labels; declare ClassLabel(names=...)."
    )
  return chosen(config.name, "label_key", config.label_key, candidates)


def scalar_key(
  config: extract_config.TfdsSource,
  field: str,
  features: tfds.features.FeaturesDict,
  kinds: str,
  expected: str,
  advice: str,
) -> str | None:
  """Returns the key of a scalar that was asked for, of one of NumPy's kinds."""
  key = getattr(config, field)
  if key is None:
    return None
  feature = dict(features.items()).get(key)
  dtype = np.dtype(getattr(feature, "np_dtype", bool))
  if (
    feature is None
    or feature.shape != ()
    or dtype.kind not in kinds
    or dtype == np.uint64
  ):
    raise InputError(
      f"{config.name}: source.{field}={key!r} is not {expected} at the top "
      f"level of its features, which are {_listed(features)}: choose {advice}, "
      "or leave it out."
    )
  return key


def _listed(features: tfds.features.FeaturesDict) -> str:
  return ", ".join(
    f"{key} ({type(feature).__name__})" for key, feature in features.items()
  )
