"""Pretrained weights: from wherever they are, once; read whole, or refused.

A file is an npz or a safetensors: neither carries code.
"""

import hashlib
import os
import pathlib
import re
import secrets
import sys
import urllib.parse
import zipfile
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files, storage

_KNOWN = (
  "give a path, https://, gs://BUCKET/OBJECT, s3://BUCKET/OBJECT or"
  " hf://OWNER/REPO[@REVISION]/FILE"
)
_PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle", ".msgpack")
_MOST_TIMES = 64
"""Weights hardly compress: what unfolds to more times its size is a bomb."""


def local_weights(location: str, sha256: str | None = None) -> pathlib.Path:
  """The file of weights, downloaded once if it is elsewhere.

  Downloads are kept in $ONESHOT_DP_WEIGHTS_DIR, or the user's cache.

  Args:
    location: a path, https://, gs://, s3:// or hf://OWNER/REPO[@REVISION]/FILE.
      Plain http:// is for this machine only.
    sha256: what the file's must be, in hexadecimal.

  Raises:
    InputError: there is no such file, its server denies it, or it has another
      SHA-256.
    RunError: the network or the disk fails.
  """
  wanted = sha256 and sha256.lower()
  if wanted is not None and not re.fullmatch("[0-9a-f]{64}", wanted):
    raise InputError(f"--weights-sha256 {wanted[:80]!a} is no SHA-256.")
  shown = escaped(re.sub("//[^/]*@", "//", location).partition("?")[0])[:500]
  try:
    if "://" not in location:
      path = pathlib.Path(location).expanduser()
    elif location.startswith("hf://"):
      path = _from_hub(location)
    else:
      path = _downloaded(location, shown, wanted)
  except (InputError, RunError):
    raise
  except Exception as error:  # the clients', whose first lines say it
    said = escaped(" ".join(str(error).split("\n\n")[0].split()))[:300]
    denied = re.search("40[134] |privilege|metadata|hf://", said)
    raise (InputError if denied else RunError)(
      f"{shown}: {said}; check that you may read it (`hf auth login`), run the"
      " same command again, or give --weights, the path of the file."
    ) from None
  files.open_regular(path).close()  # or says why not
  if wanted and (found := _sha256(path)) != wanted:
    raise InputError(f"{shown} has SHA-256 {found}, not {wanted}: correct one.")
  return path


def _sha256(path: pathlib.Path) -> str:
  with files.open_regular(path) as file:
    digest: Any = hashlib.file_digest(file, "sha256")  # pyrefly: ignore
  return digest.hexdigest()


def _downloaded(location: str, shown: str, wanted: str | None) -> pathlib.Path:
  """A file in the cache whose name says its SHA-256; fetched if it is not."""
  import obstore

  named = os.environ.get("ONESHOT_DP_WEIGHTS_DIR")
  cache = pathlib.Path(named or "~/.cache/oneshot-dp/weights").expanduser()
  store, key = _store_of(location, shown)
  source = hashlib.sha256(location.encode()).hexdigest()[:16]
  name = re.sub(r"[^A-Za-z0-9._-]", "_", key)[-80:]
  for path in cache.glob(f"{source}-*-{name}"):
    found = path.name.split("-")[1]
    if wanted in (None, found) and _sha256(path) == found:
      return path
  part = cache / f"{source}-{secrets.token_hex(4)}.part"
  print(f"fetching {shown}", file=sys.stderr)
  try:
    answer = obstore.get(store, key)  # goes on where a connection broke
    with files.disk_errors(part):
      cache.mkdir(parents=True, exist_ok=True)
      with part.open("wb") as file:
        for chunk in answer.stream(min_chunk_size=1 << 18):
          file.write(chunk)
      path = part.with_name(f"{source}-{_sha256(part)}-{name}")
      files.sync(part)
      part.rename(path)
  finally:
    part.unlink(missing_ok=True)
  return path


def _store_of(location: str, shown: str) -> tuple[Any, str]:
  """obstore's store of an address, and the object's name in it."""
  folder, _, key = location.rpartition("/")
  scheme, host = urllib.parse.urlsplit(folder)[:2]
  local = re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", host) is not None
  if scheme in ("gs", "s3") and host and key:
    return storage.store_at(folder).remote, key
  if scheme not in ("https", "http") or not (host and key):
    raise InputError(f"--weights {shown}: {_KNOWN}.")
  if "?" in location or "@" in host or (scheme == "http" and not local):
    raise InputError(
      f"--weights {shown}: what has a query or a password, or is not https://,"
      " is not fetched; download the file and give its path."
    )
  from obstore.store import from_url

  options: Any = {"allow_http": local, "timeout": "60s"}
  retries: Any = {"max_retries": 4}
  store = from_url(folder, client_options=options, retry_config=retries)
  return store, urllib.parse.unquote(key)


def _from_hub(location: str) -> pathlib.Path:
  """From the Hub, by its own client and in its own cache."""
  import huggingface_hub

  uri = huggingface_hub.parse_hf_uri(location)
  if uri.is_bucket or not uri.path_in_repo:
    raise InputError(f"--weights {escaped(location)}: {_KNOWN}.")
  found = huggingface_hub.hf_hub_download(
    uri.id, uri.path_in_repo, repo_type=uri.type, revision=uri.revision
  )
  return pathlib.Path(found)


def read_tensors(path: pathlib.Path) -> tuple[dict[str, np.ndarray], str]:
  """Every array of a file by name, all floating point, and its SHA-256.

  Raises:
    InputError: it is no regular file, a pickle (which can run code), damaged,
      or holds what is no floating-point array.
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


def _from_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
  with zipfile.ZipFile(path) as archive:
    members = archive.infolist()
  names = {member.filename for member in members}
  whole = sum(member.file_size for member in members)
  if any(name.endswith("data.pkl") for name in names):  # PyTorch's
    raise InputError
  if whole > 2**24 + _MOST_TIMES * path.stat().st_size:
    raise ValueError(f"it would unfold to {whole} bytes")
  if len(names) < len(members):
    raise ValueError("two arrays have one name")
  with np.load(path, allow_pickle=False) as npz:
    arrays = {name: npz[name] for name in npz.files}
  # An npz says no more of bfloat16 than that it has two bytes.
  return {
    name: array.view(ml_dtypes.bfloat16) if array.dtype.str == "|V2" else array
    for name, array in arrays.items()
  }


_HEADS = "MultiHeadDotProductAttention_[01]/"
_BLOCK = r"Transformer/encoderblock_(?P<b>\d+)/"
_UNIT = r"resnet/block(?P<s>[1-4])/unit(?P<u>\d+)/"
_WRN = r"wide_res_net/Block_(?P<s>[1-3])_?"
# Google's names but for their last part, and timm's: vision_transformer's and
# big_vision's of ViT (which count the layers of a block differently),
# big_transfer's of BiT, and jax_privacy's of WRN, which are named as BiT's.
_MODULES = {
  "embedding": "patch_embed.proj",
  f"{_BLOCK}LayerNorm_0": "blocks.{b}.norm1",
  f"{_BLOCK}LayerNorm_[12]": "blocks.{b}.norm2",
  f"{_BLOCK}{_HEADS}(query|key|value)": "blocks.{b}.attn.qkv",
  f"{_BLOCK}{_HEADS}out": "blocks.{b}.attn.proj",
  f"{_BLOCK}MlpBlock_[03]/Dense_0": "blocks.{b}.mlp.fc1",
  f"{_BLOCK}MlpBlock_[03]/Dense_1": "blocks.{b}.mlp.fc2",
  "Transformer/encoder_norm": "norm",
  "pre_logits": "pre_logits.fc",
  "head": "head",
  "resnet/root_block/standardized_conv2d": "stem.conv",
  f"{_UNIT}(?P<l>[abc])/standardized_conv2d": "stages.{s}.blocks.{u}.conv{l}",
  f"{_UNIT}(?P<l>[abc])/group_norm": "stages.{s}.blocks.{u}.norm{l}",
  f"{_UNIT}a/proj/standardized_conv2d": "stages.{s}.blocks.{u}.downsample.conv",
  "resnet/group_norm": "norm",
  "wide_res_net/First_conv": "stem.conv",
  rf"{_WRN}Conv_(?P<b>\d+)_(?P<p>[01])": "stages.{s}.blocks.{b}.conv{p}",
  rf"{_WRN}norm_(?P<b>\d+)_(?P<p>[01])": "stages.{s}.blocks.{b}.norm{p}",
  f"{_WRN}skip_conv": "stages.{s}.blocks.0.downsample.conv",
  f"{_WRN}skip_norm": "stages.{s}.blocks.0.downsample.norm",
  "wide_res_net/Final_norm": "norm",
  "resnet/head/conv2d|wide_res_net/Softmax": "head.fc",
}
_LEAVES = {
  **dict.fromkeys(("kernel", "w", "scale", "gamma"), "weight"),
  **dict.fromkeys(("b", "offset", "beta"), "bias"),
}
_WHOLE = {
  "cls": "cls_token",
  "pos_embedding": "pos_embed",
  "Transformer/posembed_input/pos_embedding": "pos_embed",
}
_ADDED = {"s": -1, "u": -1, "b": 0, "p": 1}
"""To the number in a name."""


def in_timm_names(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Arrays of a file, renamed if they bear Google's names; else as they are.

  In PyTorch's layout. A name that is unknown stays, to be refused later.

  Raises:
    ValueError: the arrays have no such shapes as Google's.
  """
  if not any("/" in name for name in arrays):
    return dict(arrays)
  parts: dict[str, list[np.ndarray]] = {}
  # Query before key before value.
  for name in sorted(arrays, key=lambda n: ("/value/" in n, "/key/" in n)):
    parts.setdefault(_renamed(name), []).append(_in_pytorch(name, arrays[name]))
  return {
    name: np.concatenate(found) if len(found) > 1 else found[0]
    for name, found in parts.items()
  }


def _renamed(name: str) -> str:
  module, _, leaf = name.rpartition("/")
  for pattern, timm in _MODULES.items():
    if match := re.fullmatch(pattern, module):
      numbers = {
        key: "_abc".index(text) if key == "l" else int(text) + _ADDED[key]
        for key, text in match.groupdict().items()
      }
      return f"{timm.format(**numbers)}.{_LEAVES.get(leaf, leaf)}"
  return _WHOLE.get(name, name)


def _in_pytorch(name: str, array: np.ndarray) -> np.ndarray:
  """Heads of attention side by side in one axis; a kernel's outputs first."""
  is_kernel = name.endswith(("/kernel", "/w"))
  if "DotProductAttention" in name:
    joined = (-1, array.shape[-1]) if "/out/" in name else (len(array), -1)
    array = array.reshape(joined if is_kernel else -1)
  if not is_kernel:
    return array
  return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
