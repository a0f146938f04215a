"""`oneshot-dp import`."""

import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional

from oneshot_dp.configs.extract_config import EmbeddingDtype
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Turn ready-made embeddings in an npz file into a cache.

  Arrays: embedding [n, d], label [n], optional example_id [n] and class_names
  [K], and whose each row is, where somebody may have many: see --unit-name.
  Where they are absent, SPLIT_embedding, SPLIT_label … are used. Heads of the
  cache take such features: predict on images and export need one by extract.

  Example: oneshot-dp import features.npz --split train --num-classes 10
  --out caches/train
  """

  file: Positional[Path]
  """The npz file."""
  out: Path
  """Directory of the cache."""
  split: str = "train"
  """Name of the split, or about so many percent of it (train[:80%]), chosen by
  each row's own embedding."""
  dataset_name: str | None = None
  """Public name of the data set; default: the name of the file. Releases are
  accounted per name: keep it the same for the same private data."""
  num_classes: int | None = None
  """Number of classes, where the file has no class_names."""
  backbone_name: str | None = None
  """What made the embeddings; heads only fit caches of the same name."""
  unit_name: str | None = None
  """Whom all rows of are protected together (user, patient …): the name of an
  array, integers or strings, that says whose each row is; or, where that array
  is called unit_id, what it numbers. The name is public."""
  embedding_dtype: EmbeddingDtype | None = None
  """Precision in the cache; default: the file's own."""


def run(flags: Flags) -> Answer:
  """Imports them, and says what came of it."""
  from oneshot_dp.pipeline.commands.data import inspect
  from oneshot_dp.pipeline.importing.import_features import import_features

  asked = dict(vars(flags))
  import_features(asked.pop("file"), asked.pop("out"), **asked)
  if flags.backbone_name is None:
    print(
      "warning: without --backbone-name, heads cannot be refused on features of"
      " another backbone, as long as the width is the same.",
      file=sys.stderr,
    )
  return inspect.run(inspect.Flags(path=flags.out))
