"""`oneshot-dp inspect`."""

import dataclasses
from typing import Annotated

from tyro.conf import Positional

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.answer import Answer
from oneshot_dp.pipeline.commands import flags as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Say what a path is, and what is wrong with it; exit 1 if something is.

  Images (folders, npz, Parquet, tar): classes, sizes, owners, duplicates, all
  that are broken, and files that are none. A cache: its rows and every byte. A
  head, a run, a ledger. What it says of images, caches and ledgers is PRIVATE.
  Nothing is changed.

  oneshot-dp inspect photos
  """

  path: Annotated[
    Positional[tuple[str, ...]], f.flag("On a disk, gs:// or s3://.", "PATH")
  ]


def run(flags: Flags) -> Answer:
  """Looks at it."""
  from oneshot_dp.pipeline.inspection import inspect_path

  if not flags.path:
    raise InputError("name a path: oneshot-dp inspect PATH.")
  return inspect_path(flags.path)
