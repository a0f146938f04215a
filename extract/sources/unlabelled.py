"""Images without labels: files, folders, npz and Parquet files, one by one."""

import bisect
import concurrent.futures
import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import UInt8

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.sources import arrays, image_folder
from oneshot_dp.extract.sources.example import Example
from oneshot_dp.extract.sources.table.examples import open_images
from oneshot_dp.extract.sources.table.recent import Recent, row_groups
from oneshot_dp.extract.storage.anywhere import (
  is_file,
  is_folder,
  read_file,
  state_of,
)
from oneshot_dp.extract.storage.fetch_ahead import Buffer

_ASKED_AT_ONCE = 16
"""Files of a bucket, each of which is a request."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
  """Images of one path; a row of several in one file is `file[row]`."""

  files: Sequence[str]
  size: int
  read: Callable[[int], bytes | UInt8[np.ndarray, "h w c"]]
  is_one_file: bool = True

  def where(self, row: int) -> str:
    return f"{self.files[0]}[{row}]" if self.is_one_file else self.files[row]


class UnlabelledImages:
  """What `oneshot-dp predict` is given, as a `Source` of one made-up class.

  Formal guarantees: images come in the order of the paths, those of a folder
  in that of their names by code point, those of an npz or a Parquet file in
  that of its rows. Where a file is another, so is the name of the source.
  """

  version = ""
  class_names = ("unlabelled",)
  privacy_unit = extract_config.EXAMPLE_UNIT
  id_source = extract_config.POSITION_IDS

  def __init__(
    self,
    config: extract_config.UnlabelledSource,
    split: str,
    listing: Buffer | None = None,
  ) -> None:
    del split, listing  # all of them, and as they are
    groups = row_groups()
    paths = map(os.path.expanduser, config.paths)
    self._parts = [_part(path, groups) for path in paths]
    sizes = (part.size for part in self._parts)
    self._starts = [0, *itertools.accumulate(sizes)]
    digest = hashlib.sha256()
    files = [file for part in self._parts for file in part.files]
    with concurrent.futures.ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
      for file, state in zip(files, pool.map(state_of, files), strict=True):
        digest.update(f"{file}\0{state[0]}\0{state[1]}\0".encode())
    self.listing = digest.hexdigest().encode()
    self.name = f"unlabelled-{digest.hexdigest()[:16]}"

  def __len__(self) -> int:
    return self._starts[-1]

  def _place(self, index: int) -> tuple[_Part, int]:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    part = bisect.bisect_right(self._starts, index) - 1
    return self._parts[part], index - self._starts[part]

  def __getitem__(self, index: int) -> Example:
    """Returns an image with the label 0, which says nothing."""
    part, row = self._place(index)
    try:
      image = part.read(row)
    except OSError as error:
      reason = error.strerror or error
      raise RunError(
        f"{part.where(row)!r} cannot be read any more: {reason}."
      ) from error
    return Example(example_id=index, label=0, image=image)

  def where(self, index: int) -> str:
    part, row = self._place(index)
    return part.where(row)


def _part(path: str, groups: Recent) -> _Part:
  if is_folder(path):
    files = image_folder.images_below(path)
    if not files:
      raise InputError(
        f"{path!r} has no images: they end in"
        f" {', '.join(image_folder.EXTENSIONS)}."
      )
    return _files(files)
  if not is_file(path):
    raise InputError(f"{path!r} is neither a file nor a folder.")
  match pathlib.Path(path).suffix.lower():
    case ".npz":
      with arrays.open_npz(path) as npz:
        if "image" not in npz.files:
          raise InputError(
            f"{path!r} has no array 'image': it has {', '.join(npz.files)}."
          )
        images = arrays.checked_images(npz["image"], f"{path}[image]")
    case ".parquet" | ".arrow" | ".tar":
      images = open_images(path, groups=groups)
    case _:
      return _files([path])
  return _Part(files=(path,), size=len(images), read=images.__getitem__)


def _files(files: Sequence[str]) -> _Part:
  return _Part(
    files=files,
    size=len(files),
    read=lambda row: read_file(files[row]),
    is_one_file=False,
  )
