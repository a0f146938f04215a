"""A public start from a file, its vectors by the names of the classes."""

import hashlib
import io
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.sources.arrays import UNREADABLE
from oneshot_dp.linear_dp.public_start import SETTING, PublicStart
from oneshot_dp.pipeline.saved_head import public_record
from oneshot_dp.pipeline.saved_head.directory import RECEIPT_FILE, WEIGHTS_FILE
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.saved_head.public_record import PublicRecord
from oneshot_dp.pipeline.saved_head.verify import read_sound_head

_Vectors = dict[str, np.ndarray]


def read_start(path: Path, private: FeatureCache) -> PublicStart:
  """The start that a command names.

  It is an npz of one vector for each class, by its name; the directory of a
  private head of another data set, which had no start itself; or weights alone,
  whose columns are of the classes in their order. InputError: no such file, or
  head; other classes than the cache has; vectors of another width, or that
  `PublicStart.of` refuses.
  """
  if path.name == WEIGHTS_FILE and (path.parent / RECEIPT_FILE).exists():
    path = path.parent  # which has more to say
  if path.is_dir():
    vectors, sha256 = _of_head(path, private)
  elif path.suffix == ".safetensors":
    vectors, sha256 = _of_weights(path, private)
  else:
    vectors, sha256 = _of_npz(path)
  names, d = private.info.class_names, private.info.feature_dim
  if missing := [name for name in names if name not in vectors]:
    raise InputError(
      f"{path} has no vector for {_some(missing)} of {private.path}: give one"
      " for each class, by its name."
    )
  if extra := sorted(vectors.keys() - set(names)):
    raise InputError(
      f"{path} has {_some(extra)}, which is no class of {private.path}: leave"
      " it out, or mend the name."
    )
  for name in names:
    if vectors[name].shape != (d,):
      raise InputError(
        f"{path}: {name!r} has shape {vectors[name].shape}, and embeddings of"
        f" {private.path} are ({d},): use the same model's."
      )
  return PublicStart.of(
    np.stack([vectors[name] for name in names]),
    num_classes=len(names),
    feature_dim=d,
    names=names,
    sha256=sha256,
  )


def _some(names: list[str]) -> str:
  more = f" and {len(names) - 3} more" if len(names) > 3 else ""
  return ", ".join(map(repr, names[:3])) + more


def _of_npz(path: Path) -> tuple[_Vectors, str]:
  try:
    content = path.read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
      vectors = {name: file[name] for name in file.files}
  except FileNotFoundError as e:
    raise InputError(f"{path}: no such file.") from e
  except UNREADABLE as e:
    raise InputError(
      f"{path} is not a readable npz ({type(e).__name__}): save one vector for"
      " each class with numpy.savez."
    ) from e
  return vectors, hashlib.sha256(content).hexdigest()


def _of_weights(path: Path, private: FeatureCache) -> tuple[_Vectors, str]:
  """Weights that nobody vouches for, as of an npz."""
  names = private.info.class_names
  try:
    content = path.read_bytes()
    parts = safetensors.numpy.load(content)
    kernel, bias = parts["kernel"], parts.get("bias", np.zeros(1))
    vectors = dict(zip(names, kernel.T, strict=True))
  except OSError as e:
    raise InputError(f"{path} cannot be read: {e.strerror}.") from e
  except (safetensors.SafetensorError, KeyError, ValueError) as e:
    raise InputError(
      f"{path} has no kernel of {len(names)} columns ({type(e).__name__}): give"
      f" weights of the classes of {private.path}, in their order."
    ) from e
  _check_no_bias(path, bias)
  return vectors, hashlib.sha256(content).hexdigest()


def _check_no_bias(path: Path, bias: np.ndarray) -> None:
  if np.ptp(bias):
    raise InputError(
      f"{path} has a bias for each class, which steps do not start from; use a"
      " head that has none, as those of --head lamb."
    )


def _of_head(path: Path, private: FeatureCache) -> tuple[_Vectors, str]:
  """Released already, so that it costs what was paid for it, elsewhere."""
  saved = read_sound_head(path, by_digests=True)
  here = FeatureSpace.of_cache(private.path, private.info)
  there = FeatureSpace.of_receipt(path, saved.receipt)
  there.check_same_embeddings(here)
  training = saved.receipt["training"]
  datasets = {there.rows[0]}
  if public_record.SETTING in training:  # which public rows it was centred by
    public = PublicRecord.from_json(training[public_record.SETTING])
    datasets.add(public.dataset)
  if here.rows[0].casefold() in map(str.casefold, datasets):
    raise InputError(
      f"{path} is of the private data set {here.rows[0]!r}: what a head that"
      " starts from it costs would not be in its receipt; start from public"
      " data."
    )
  if saved.receipt.get("private") is not True:
    raise InputError(
      f"{path} is a head without privacy, which may not be shown; save its"
      " vectors as an npz, if its data are public."
    )
  if SETTING in training:
    raise InputError(
      f"{path} started from other weights itself, which may be of a head of"
      f" {here.rows[0]!r}, whose cost no receipt would have; give the public"
      " file that it started from."
    )
  _check_no_bias(path, np.asarray(saved.head.bias))
  columns = np.asarray(saved.head.kernel).T
  if len(columns) != len(there.class_names):
    raise InputError(f"{path}: its receipt names other classes than it has.")
  vectors = dict(zip(there.class_names, columns, strict=True))
  weights = (path / WEIGHTS_FILE).read_bytes()
  return vectors, hashlib.sha256(weights).hexdigest()
