"""Pretrained weights: downloaded once, read whole, or refused.

A file is an npz or a safetensors: neither can carry code.
"""

import functools
import hashlib
import os
import pathlib
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
from jaxtyping import Array, Float32

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files, hub, storage
from oneshot_dp.extract.npy import MAX_DIRECTORY_BYTES, open_archive, read_array

Arrays = dict[str, np.ndarray]
Images = Float32[Array, "b s s 3"]
"""A batch of normalized images."""
_MAX_FILE_BYTES = 1 << 36
_DOWNLOAD_CHUNK_BYTES = 1 << 26
_SUPPORTED_LOCATIONS = (
  "give a path, gs://BUCKET/OBJECT, s3://BUCKET/OBJECT or"
  " hf://OWNER/REPO[@REVISION]/FILE; download first what is elsewhere"
)
_PICKLE_SUFFIXES = (
  ".bin",
  ".pth",
  ".pt",
  ".ckpt",
  ".pkl",
  ".pickle",
  ".msgpack",
)
# Weights hardly compress: what unfolds to more times its size is a bomb.
_MAX_COMPRESSION = 64
_UNCOMPRESSED_ALLOWANCE = 1 << 24


class _PickleError(Exception):
  """The file is a pickle."""


class _NotInRepositoryError(InputError):
  """The Hub has the repository, and no such file in it."""


def local_weights(location: str, sha256: str | None = None) -> pathlib.Path:
  """Returns a weights file on this machine, downloaded once if need be.

  What comes from the Hub stays in its client's own cache, the rest in
  $ONESHOT_DP_WEIGHTS_DIR (default: the user's cache).

  Args:
    location: a path, gs://BUCKET/OBJECT, s3://BUCKET/OBJECT or
      hf://OWNER/REPO[@REVISION]/FILE.
    sha256: the SHA-256 that the file must have, in hexadecimal.

  Raises:
    InputError: there is no such file, its server denies it, or it has another
      SHA-256.
    RunError: the network or the disk fails.
  """
  if sha256 is not None:
    sha256 = sha256.lower()
    if not re.fullmatch("[0-9a-f]{64}", sha256):
      raise InputError(
        f"weights_sha256={sha256[:80]!a} is not a SHA-256: give 64 hexadecimal"
        " digits."
      )
  # Every place ends as a file on this disk, whose bytes are hashed and parsed
  # as any other's.
  if "://" not in location:
    path = pathlib.Path(location).expanduser()
  else:
    shown = _without_secrets(location)
    if location.startswith("hf://"):
      path = _download_from_hub(location, shown)
    elif storage.is_url(location):
      path = _download_from_store(location, shown)
    else:
      raise InputError(f"weights {shown}: {_SUPPORTED_LOCATIONS}.")
  # Raises if the file cannot be read.
  files.open_regular(path, _MAX_FILE_BYTES).close()
  if sha256 is not None:
    actual = files.sha256(path)
    if actual != sha256:
      raise InputError(
        f"{escaped(str(path))} has SHA-256 {actual}, not {sha256}: give the"
        " weights file that has it, wherever it is now."
      )
  return path


def _without_secrets(url: str) -> str:
  """A URL as it may be printed, without a password or a key."""
  without_user = re.sub("//[^/]*@", "//", url)
  return escaped(without_user.partition("?")[0])[:500]


def _download_from_store(location: str, shown: str) -> pathlib.Path:
  """Downloads an object into the cache, unless that version is there.

  The file is named after the object and its version, so a changed object is
  another file.
  """
  configured = os.environ.get("ONESHOT_DP_WEIGHTS_DIR")
  cache = pathlib.Path(configured or "~/.cache/oneshot-dp/weights").expanduser()
  # The name in the cache holds the object's version: what was downloaded once
  # is used again only while the store has that version.
  folder, _, key = location.rpartition("/")
  store = storage.store_at(folder)
  try:
    version = storage.state(store, key)
    num_bytes = version[0]
    digest = hashlib.sha256(repr((location, version)).encode()).hexdigest()[:32]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", key)[-80:]
    path = cache / f"{digest}-{readable}"
    if path.exists() and path.stat().st_size == num_bytes:
      return path

    def chunks() -> Iterator[bytes]:
      with storage.seekable(store, key, num_bytes) as remote:
        while True:
          chunk = remote.read(_DOWNLOAD_CHUNK_BYTES)  # retries by itself
          if not chunk:
            break
          yield chunk
      # Parts of two versions must not be joined.
      if storage.state(store, key) != version:
        raise RunError(f"{shown} was changed meanwhile; run it again.")

    print(f"fetching {shown}", file=sys.stderr)
    path.unlink(missing_ok=True)
    files.write_once(path, chunks())
  except FileNotFoundError:
    raise InputError(f"the weights file {shown} does not exist.") from None
  return path


def hub_file_beside(location: str, name: str) -> pathlib.Path | None:
  """Downloads another file of the repository that a weights file is in.

  Args:
    location: of the weights, hf://OWNER/REPO[@REVISION]/FILE.
    name: of the other file, in the same folder and of the same revision.

  Returns:
    The file on this machine; None if the repository does not have it.

  Raises:
    InputError, RunError: as `local_weights`.
  """
  beside = f"{location.rpartition('/')[0]}/{name}"
  try:
    return _download_from_hub(beside, _without_secrets(beside))
  except _NotInRepositoryError:
    return None


def _download_from_hub(location: str, shown: str) -> pathlib.Path:
  """Downloads a file of the Hugging Face Hub by its own client."""
  # The client sets the level of its log when its parts are first imported: all
  # of them are, before it is made quiet.
  from huggingface_hub import hf_hub_download, parse_hf_uri
  from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
  )

  try:
    uri = parse_hf_uri(location)
    if uri.is_bucket or not uri.path_in_repo:
      raise InputError(f"weights {shown}: {_SUPPORTED_LOCATIONS}.")
    with hub.quiet_client():
      path = hf_hub_download(
        uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision
      )
  except InputError:
    raise
  except Exception as error:
    # The client's errors are many; their first paragraph says what happened.
    message = hub.first_paragraph(error)
    advice = "check that you may read it (`hf auth login`)"
    was_answered = isinstance(error.__cause__, HfHubHTTPError)
    if isinstance(error, LocalEntryNotFoundError) and not was_answered:
      message = "the Hub is out of reach, and has not sent this file before"
      advice = "check the connection"
    kind = RunError
    if re.search("40[134] |hf://", message):
      kind = InputError
    if isinstance(error, RemoteEntryNotFoundError):
      kind = _NotInRepositoryError
    raise kind(
      f"{shown}: {message}; {advice} and try again, or give the path of the"
      " file as the weights."
    ) from None
  return pathlib.Path(path)


def read_tensors(path: pathlib.Path) -> tuple[Arrays, str]:
  """Reads every array of a weights file.

  Args:
    path: of an npz or safetensors file; its content says which.

  Returns:
    The arrays by name, and the SHA-256 of the file.

  Raises:
    InputError: it is not a regular file, is a pickle (which can run code), is
      damaged, or has arrays that are not floating point.
  """
  shown = escaped(str(path))
  sha256 = files.sha256(path)
  try:
    if path.suffix.lower() in _PICKLE_SUFFIXES:
      raise _PickleError
    if zipfile.is_zipfile(path):
      arrays = _read_npz(path)
    else:
      arrays = _read_safetensors(path)
    # Neither format can carry code, but each may carry integers or strings,
    # which no network here has as weights.
    for name, array in arrays.items():
      # (NumPy does not count bfloat16 among its floating types.)
      if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        raise ValueError(f"{name} is {array.dtype}, not floating point")
  except _PickleError:
    raise InputError(
      f"{shown}: a pickle can run code when it is loaded, and is not read; give"
      " the model.safetensors of the same repository, or an npz of its arrays."
    ) from None
  except MemoryError:
    raise  # this machine's trouble: the file may be sound
  except Exception as error:  # whatever the parsers of damaged bytes raise
    reason = escaped(" ".join(str(error).split()))[:300]
    raise InputError(
      f"{shown}: the weights are no whole npz or safetensors file of plain"
      f" arrays ({type(error).__name__}: {reason}); fetch them again."
    ) from error
  return arrays, sha256


def _read_safetensors(path: pathlib.Path) -> Arrays:
  arrays = {}
  with path.open("rb") as content:
    header_bytes = int.from_bytes(content.read(8), "little")
  if header_bytes > MAX_DIRECTORY_BYTES:
    raise ValueError(
      f"a header of {header_bytes:,} bytes, which may have"
      f" {MAX_DIRECTORY_BYTES:,}"
    )
  with safetensors.safe_open(path, framework="np") as file:
    for name in file.keys():  # noqa: SIM118
      arrays[name] = file.get_tensor(name)
  return arrays


def _read_npz(path: pathlib.Path) -> Arrays:
  arrays = {}
  with path.open("rb") as content, open_archive(content) as archive:
    members = archive.infolist()
    _check_members(members, path.stat().st_size)
    for member in members:
      with archive.open(member) as stream:
        array = read_array(stream, member.file_size)
      # An npz says no more of bfloat16 than that it has two bytes.
      if array.dtype.str == "|V2":
        array = array.view(ml_dtypes.bfloat16)
      arrays[member.filename.removesuffix(".npy")] = array
  return arrays


def _check_members(members: Sequence[zipfile.ZipInfo], file_bytes: int) -> None:
  """Checks what an archive states of itself, before anything is unfolded."""
  # PyTorch's own files are archives of a pickle, too.
  if any(member.filename.endswith("data.pkl") for member in members):
    raise _PickleError
  num_bytes = sum(member.file_size for member in members)
  max_bytes = _UNCOMPRESSED_ALLOWANCE + _MAX_COMPRESSION * file_bytes
  if num_bytes > max_bytes:
    raise ValueError(f"it would unfold to {num_bytes} bytes")
  if len({member.filename for member in members}) < len(members):
    raise ValueError("two arrays have one name")


@functools.lru_cache(maxsize=8)  # of a deep network it takes a second
def parameters(
  network: Any, image_size: int
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
  """Returns the parameters of a Flax module by their names in timm.

  Args:
    network: a module whose parameters are named as timm's, for example
      `blocks.0/attn.qkv/kernel` for timm's `blocks.0.attn.qkv.weight`.
    image_size: side of its images.

  Returns:
    The path of each in Flax, and its shape in PyTorch's layout.
  """
  images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
  # Only shapes are computed, so no memory is taken for weights that may not
  # fit.
  tree = jax.eval_shape(network.init, jax.random.key(0), images)
  leaves: dict[Any, Any] = flax.traverse_util.flatten_dict(tree["params"])
  by_timm_name = {}
  for path, leaf in leaves.items():
    *modules, last = path
    # PyTorch has a kernel's outputs first, Flax has them last.
    axes = range(leaf.ndim)
    if last == "kernel":
      axes = (1, 0) if leaf.ndim == 2 else (3, 2, 0, 1)
    if last in ("kernel", "scale"):
      last = "weight"
    shape = tuple(leaf.shape[axis] for axis in axes)
    by_timm_name[".".join([*modules, last])] = (path, shape)
  return by_timm_name


def check_arrays(
  network: Any, arrays: Mapping[str, np.ndarray], image_size: int
) -> None:
  """Checks that arrays are exactly the parameters of a network.

  Args:
    network: a Flax module; see `parameters`.
    arrays: by timm's names, in PyTorch's layout.
    image_size: the side of its images in pixels, on which shapes may depend.

  Raises:
    ValueError: some are missing, unexpected or of another shape; the message
      names them all.
  """
  # All faults at once: which arrays are missing says at a glance whether it is
  # another network, or this one with something left out.
  wanted = parameters(network, image_size)
  misshapen = []
  for name, (_, shape) in wanted.items():
    if name in arrays and arrays[name].shape != shape:
      actual = list(arrays[name].shape)
      misshapen.append(f"{name} {actual} instead of {list(shape)}")
  faults = {
    "missing": wanted.keys() - arrays.keys(),
    "unexpected": arrays.keys() - wanted.keys(),
    "of another shape": misshapen,
  }
  messages = []
  for kind, names in faults.items():
    if names:
      messages.append(f"{kind}: {', '.join(sorted(names))}")
  if messages:
    raise ValueError("; ".join(messages))


def flax_params(
  network: Any, arrays: Mapping[str, np.ndarray], image_size: int
) -> dict[str, Any]:
  """Returns arrays of timm's names and layout as parameters of a Flax module.

  They are float32, except for the kernels of a network of bfloat16: these take
  half the memory, and the products would round them there in any case.

  Args:
    network: the module; see `parameters`.
    arrays: by timm's names, in PyTorch's layout.
    image_size: side of its images.

  Raises:
    ValueError: arrays are missing, unexpected, misshapen or not finite.
  """
  check_arrays(network, arrays, image_size)
  params = {}
  for name, (path, _) in parameters(network, image_size).items():
    array = arrays[name].astype(np.float32, copy=False)
    # One NaN in the weights would make every embedding NaN, and the job would
    # fail at its last step.
    if not np.isfinite(array).all():
      raise ValueError(f"{name} has values that are not finite")
    if path[-1] == "kernel":
      array = array.T if array.ndim == 2 else array.transpose(2, 3, 1, 0)
      array = array.astype(jnp.dtype(network.compute_dtype))
    params[path] = np.asarray(array, order="C")
  return flax.traverse_util.unflatten_dict(params)
