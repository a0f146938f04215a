"""Pretrained weights: from wherever they are, once; read whole, or refused.

A file is an npz or a safetensors: neither carries code.
"""

import functools
import hashlib
import os
import pathlib
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
from jaxtyping import Array, Float32

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files, storage

Arrays = dict[str, np.ndarray]
Images = Float32[Array, "b s s 3"]
"""Normalised."""
_MOST_BYTES = 1 << 36
_KNOWN = (
  "give a path, gs://BUCKET/OBJECT, s3://BUCKET/OBJECT or"
  " hf://OWNER/REPO[@REVISION]/FILE; download first what is elsewhere"
)
_PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle", ".msgpack")
_MOST_TIMES = 64
"""Weights hardly compress: what unfolds to more times its size is a bomb."""


def local_weights(location: str, sha256: str | None = None) -> pathlib.Path:
  """The file of weights, downloaded once if it is elsewhere.

  `location`: a path, gs://, s3:// or hf://OWNER/REPO[@REVISION]/FILE. Those of
  the Hub are in its own cache, others in $ONESHOT_DP_WEIGHTS_DIR, or the user's
  cache. InputError: there is no such file, its server denies it, or its SHA-256
  is not `sha256` (hexadecimal). RunError: the network or the disk fails.
  """
  wanted = sha256 and sha256.lower()
  if wanted is not None and not re.fullmatch("[0-9a-f]{64}", wanted):
    raise InputError(f"--weights-sha256 {wanted[:80]!a} is no SHA-256.")
  if "://" not in location:
    path = pathlib.Path(location).expanduser()
  else:
    # Without a password or a key that may be in it.
    hidden = re.sub("//[^/]*@", "//", location).partition("?")[0]
    shown = escaped(hidden)[:500]
    if location.startswith("hf://"):
      path = _from_hub(location, shown)
    elif storage.is_url(location):
      path = _from_store(location, shown)
    else:
      raise InputError(f"--weights {shown}: {_KNOWN}.")
  files.open_regular(path, _MOST_BYTES).close()  # or says why not
  if wanted and (found := _sha256(path)) != wanted:
    raise InputError(
      f"{escaped(str(path))} has SHA-256 {found}, not {wanted}: correct one."
    )
  return path


def _sha256(path: pathlib.Path) -> str:
  with files.open_regular(path) as file:
    digest: Any = hashlib.file_digest(file, "sha256")  # pyrefly: ignore
  return digest.hexdigest()


def _from_store(location: str, shown: str) -> pathlib.Path:
  """A file in the cache, named after the object and its version."""
  named = os.environ.get("ONESHOT_DP_WEIGHTS_DIR")
  cache = pathlib.Path(named or "~/.cache/oneshot-dp/weights").expanduser()
  folder, _, key = location.rpartition("/")
  store = storage.store_at(folder)
  try:
    there = storage.state(store, key)
    digest = hashlib.sha256(repr((location, there)).encode()).hexdigest()[:32]
    path = cache / f"{digest}-{re.sub(r'[^A-Za-z0-9._-]', '_', key)[-80:]}"
    if path.exists() and path.stat().st_size == there[0]:
      return path

    def parts() -> Iterator[bytes]:
      with storage.seekable(store, key, there[0]) as remote:
        while part := remote.read(1 << 26):  # each is tried again
          yield part
      if storage.state(store, key) != there:
        raise RunError(f"{shown} was changed meanwhile; run it again.")

    print(f"fetching {shown}", file=sys.stderr)
    path.unlink(missing_ok=True)
    files.write_once(path, parts())
  except FileNotFoundError:
    raise InputError(f"--weights {shown} is not there.") from None
  return path


def _from_hub(location: str, shown: str) -> pathlib.Path:
  """From the Hub, by its own client and in its own cache."""
  import huggingface_hub

  try:
    uri = huggingface_hub.parse_hf_uri(location)
    if uri.is_bucket or not uri.path_in_repo:
      raise InputError(f"--weights {shown}: {_KNOWN}.")
    found = huggingface_hub.hf_hub_download(
      uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision
    )
  except InputError:
    raise
  except Exception as error:  # the client's, whose first lines say it
    said = escaped(" ".join(str(error).split("\n\n")[0].split()))[:300]
    denied = re.search("40[134] |hf://", said)
    raise (InputError if denied else RunError)(
      f"{shown}: {said}; check that you may read it (`hf auth login`), run the"
      " same command again, or give --weights, the path of the file."
    ) from None
  return pathlib.Path(found)


def read_tensors(path: pathlib.Path) -> tuple[Arrays, str]:
  """Every array of a file by name, all floating point, and its SHA-256.

  InputError: it is no regular file, a pickle (which can run code), damaged, or
  holds what is no floating-point array.
  """
  shown, sha256 = escaped(str(path)), _sha256(path)
  try:
    if path.suffix.lower() in _PICKLES:
      raise InputError
    if zipfile.is_zipfile(path):
      arrays = _from_npz(path)
    else:
      with safetensors.safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, array in arrays.items():
      # (NumPy does not count bfloat16 among its floating types.)
      if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        raise ValueError(f"{name} is {array.dtype}, not floating point")
  except InputError:
    raise InputError(
      f"{shown}: a pickle can run code when it is loaded, and is not read; give"
      " the model.safetensors of the same repository, or an npz of its arrays."
    ) from None
  except Exception as error:  # whatever their parsing of damaged bytes meets
    reason = escaped(" ".join(str(error).split()))[:300]
    raise InputError(
      f"{shown}: the weights are no whole npz or safetensors file of plain"
      f" arrays ({type(error).__name__}: {reason}); fetch them again."
    ) from error
  return arrays, sha256


def _from_npz(path: pathlib.Path) -> Arrays:
  with zipfile.ZipFile(path) as archive:
    members = archive.infolist()
  whole = sum(member.file_size for member in members)
  if any(each.filename.endswith("data.pkl") for each in members):  # PyTorch's
    raise InputError
  if whole > 2**24 + _MOST_TIMES * path.stat().st_size:
    raise ValueError(f"it would unfold to {whole} bytes")
  if len({each.filename for each in members}) < len(members):
    raise ValueError("two arrays have one name")
  with np.load(path, allow_pickle=False) as npz:
    arrays = {name: npz[name] for name in npz.files}
  # An npz says no more of bfloat16 than that it has two bytes.
  return {
    name: array.view(ml_dtypes.bfloat16) if array.dtype.str == "|V2" else array
    for name, array in arrays.items()
  }


@functools.lru_cache(maxsize=8)  # of a deep network it takes a second
def parameters(
  network: Any, image_size: int
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
  """Path in Flax and shape in PyTorch of every parameter, by timm's name."""
  images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
  tree = jax.eval_shape(network.init, jax.random.key(0), images)
  found = {}
  leaves: dict[Any, Any] = flax.traverse_util.flatten_dict(tree["params"])
  for path, leaf in leaves.items():
    last = {"kernel": "weight", "scale": "weight"}.get(path[-1], path[-1])
    axes = range(leaf.ndim)
    if path[-1] == "kernel":
      axes = (1, 0) if leaf.ndim == 2 else (3, 2, 0, 1)
    shape = tuple(leaf.shape[axis] for axis in axes)
    found[".".join((*path[:-1], last))] = path, shape
  return found


def check_arrays(
  network: Any, arrays: Mapping[str, np.ndarray], image_size: int
) -> None:
  """ValueError: arrays are missing, unexpected or misshapen; names them."""
  wanted = parameters(network, image_size)
  faults = {
    "missing": wanted.keys() - arrays.keys(),
    "unexpected": arrays.keys() - wanted.keys(),
    "of another shape": [
      f"{name} {list(arrays[name].shape)} instead of {list(shape)}"
      for name, (_, shape) in wanted.items()
      if name in arrays and arrays[name].shape != shape
    ],
  }
  said = [
    f"{k}: {', '.join(sorted(some))}" for k, some in faults.items() if some
  ]
  if said:
    raise ValueError("; ".join(said))


def flax_params(
  network: Any, arrays: Mapping[str, np.ndarray], image_size: int
) -> dict[str, Any]:
  """Arrays by timm's names, in PyTorch's layout, as a module's parameters.

  In float32, but for the kernels of a network of bfloat16: they take half the
  memory, and the products would round them there in any case. ValueError: some
  are missing, unexpected, misshapen or not finite.
  """
  check_arrays(network, arrays, image_size)
  params = {}
  for name, (path, _) in parameters(network, image_size).items():
    array = arrays[name].astype(np.float32, copy=False)
    if not np.isfinite(array).all():
      raise ValueError(f"{name} has values that are not finite")
    if path[-1] == "kernel":
      array = array.T if array.ndim == 2 else array.transpose(2, 3, 1, 0)
      array = array.astype(jnp.dtype(network.compute_dtype))
    params[path] = np.asarray(array, order="C")
  return flax.traverse_util.unflatten_dict(params)
