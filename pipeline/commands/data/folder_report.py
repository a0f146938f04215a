"""`inspect` of a folder of images: what an extraction would meet there."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.content_keys import image_key
from oneshot_dp.extract.images.preprocess import DecodeError, decode_image
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.sources.image_folder import (
  files_below,
  folders_in,
  is_split,
  warn_of_heic,
)
from oneshot_dp.pipeline.runs.text_table import text_table
from oneshot_dp.pipeline.shell.answer import Answer

_AT_ONCE = 1024
"""Images in flight: what is kept of each is small, its pixels are not."""


def report_folder(folder: Path) -> Answer | None:
  """PRIVATE words and public facts; None where there is no image at all.

  Every file is looked at once. InputError: a folder cannot be read, or a link
  leads back into itself.
  """
  images, others = files_below(str(folder))
  warn_of_heic(str(folder), others)
  if not images:
    return None
  names = folders_in(str(folder))
  splits = [name for name in names if is_split(name)]
  places = {s: folders_in(str(folder / s)) for s in splits} or {"": names}
  sizes, broken, twice = look_at(
    images, lambda row: (folder / images[row]).read_bytes()
  )
  of = [tuple(path.split("/")[: 2 if splits else 1]) for path in images]
  counts = collections.Counter(of)
  rows, notes = [], []
  for split, classes in places.items():
    for name in classes:
      count = counts.pop((split, name) if splits else (name,), 0)
      rows.append([os.path.join(split, name), f"{count:,}"])
      notes.append("" if count else "no image, an error")
  astray = [path for path, at in zip(images, of, strict=True) if at in counts]
  lines = [
    f"{folder}: PRIVATE but for the names of its classes; nothing was changed",
    *text_table(("class", "images"), rows, notes),
    f"all images: {len(images):,}",
    *sizes,
    *broken,
    *_listed("in no class folder, an error", astray),
    *_listed("not images, passed over", others),
    *twice,
  ]
  return Answer(
    text="\n".join(lines), facts={"folder": folder, "classes": places}
  )


def look_at(
  names: Sequence[str], read: Callable[[int], bytes]
) -> tuple[list[str], list[str], list[str]]:
  """Lines about the sizes of images, the broken ones, and equal other ones.

  `read` takes an image's place; OSError or InputError where it cannot be read.
  """

  def look(row: int) -> tuple[int, tuple[int, int]] | str:
    try:
      data = read(row)
      height, width, _ = decode_image(data).shape
    except (OSError, InputError, DecodeError) as error:
      return getattr(error, "strerror", None) or str(error)
    return image_key(data), (width, height)

  sizes, broken = [], []
  copies = collections.defaultdict[int, list[str]](list)
  with (
    concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    step_bar("inspect", "image", len(names)) as bar,
  ):
    for start in range(0, len(names), _AT_ONCE):
      rows = range(start, min(start + _AT_ONCE, len(names)))
      for row, seen in zip(rows, pool.map(look, rows), strict=True):
        if isinstance(seen, str):
          broken.append(f"{names[row]}: {seen}")
        else:
          copies[seen[0]].append(names[row])
          sizes.append(seen[1])
        bar.update()
  twice = [" = ".join(some) for some in copies.values() if len(some) > 1]
  return (
    _sizes(sizes),
    _listed("broken", broken),
    _listed("the same bytes", twice),
  )


def _sizes(sizes: list[tuple[int, int]]) -> list[str]:
  if not sizes:
    return []
  low, middle, high = np.percentile(
    sizes, [0, 50, 100], axis=0, method="nearest"
  )
  return [
    f"width x height: {low[0]} x {low[1]} at least, {high[0]} x {high[1]} at"
    f" most, median {middle[0]} x {middle[1]}"
  ]


def _listed(what: str, lines: list[str]) -> list[str]:
  return [f"{what}: {len(lines):,}", *(f"  {line}" for line in lines)]
