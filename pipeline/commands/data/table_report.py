"""`inspect` of Parquet, Arrow and tar files: what an extraction would meet."""

import bisect
import collections
import itertools
import os
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.image_folder import files_below
from oneshot_dp.extract.sources.table.examples import open_images
from oneshot_dp.extract.sources.table.files import EXTENSIONS, splits_of
from oneshot_dp.extract.sources.table.recent import Recent
from oneshot_dp.pipeline.commands.data.folder_report import look_at
from oneshot_dp.pipeline.runs.text_table import text_table
from oneshot_dp.pipeline.shell.answer import Answer

_OPEN_FILES = 16


def is_table(path: Path) -> bool:
  """Whether it is such a file, or a folder that has one at some depth."""
  others = files_below(str(path))[1] if path.is_dir() else [path.name]
  return any(name.endswith(EXTENSIONS) for name in others)


def report_table(path: Path) -> Answer:
  """PRIVATE words and public facts of all rows, each looked at once.

  Labels are shown as they are written, by the names of their classes where the
  files have some. InputError: there are no such files, or one cannot be read.
  """
  classes = {}
  lines = [
    f"{path}: PRIVATE but for the names of its classes; nothing was changed"
  ]
  folder = path if path.is_dir() else path.parent
  for split, files in splits_of(str(path)).items():
    title = split or "no split, where others have one"
    classes[title], said = _split(folder, files)
    lines += [f"split {title}", *said]
  return Answer(
    text="\n".join(lines), facts={"table": path, "classes": classes}
  )


def _split(folder: Path, files: list[str]) -> tuple[list[str], list[str]]:
  """The public names of the classes, and lines about the rows."""
  paths = [os.path.join(folder, file) for file in files]
  labels, places, members, starts = [], [], [], [0]
  names, note = None, []
  for file, path in zip(files, paths, strict=True):
    images = open_images(path)
    try:
      key = images.label_key(None)
      names = images.class_names(key)
      # What is neither is of no class, and need not be hashable.
      values = images.values(key)
      labels += [v if type(v) in (int, str) else repr(v) for v in values]
    except InputError as error:
      note = [f"no labels: {error}"]
    members.append(getattr(images, "members", None))
    starts.append(starts[-1] + len(images))
    places += [f"{file}[{row}]" for row in range(len(images))]
  recent = Recent(_OPEN_FILES)

  def read(row: int) -> bytes:
    file = bisect.bisect_right(starts, row) - 1
    images = recent.get(
      file, lambda: open_images(paths[file], members=members[file])
    )
    return images[row - starts[file]]

  counts = collections.Counter(labels)
  rows = [
    [name, f"{counts.pop(label, 0) + counts.pop(name, 0):,}"]
    for label, name in enumerate(names or ())
  ]
  notes = [""] * len(rows) + ["of no class"] * len(counts) if names else ()
  rows += [[str(label), f"{count:,}"] for label, count in counts.items()]
  sizes, broken, twice = look_at(places, read)
  return names or [], [
    *note,
    *text_table(("class" if names else "label", "images"), rows, notes),
    f"all images: {len(places):,}",
    *itertools.chain(sizes, broken, twice),
  ]
