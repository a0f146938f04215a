"""ImageNet-ReaL: the validation images with every label that is right.

The file is a JSON list with one list of classes for each image, in the order of
the images' numbers: its first entry is about ILSVRC2012_val_00000001.JPEG. A
prediction is right if it is any of them; images with an empty list are left
out. TFDS and image folders keep the images in other orders, so only caches
whose `example_id` is that number can be matched.

Source: Beyer, Hénaff, Kolesnikov, Zhai & van den Oord, "Are we done with
ImageNet?", 2020 (arXiv 2006.07159); real.json of its authors.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import POSITION_IDS
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.extract.storage.typed_json import parse_json, read_content
from oneshot_dp.linear_dp.evaluate import LabelLists
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.pipeline.runs.evaluation import Evaluation, count_cache
from oneshot_dp.pipeline.training.cache_rows import cache_rows

REAL_LABELS = "ReaL labels treated as public"
"""What results say of accuracies on the lists."""
_FIRST_NUMBER = 1
_LEAST_AGREEMENT = 0.5
"""Far below the nine in ten labels of ImageNet that are in their list, and far
above chance."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RealLabels:
  """The lists, by the images' numbers, and what accuracies on them are of."""

  lists: LabelLists
  statement: dict[str, Any]

  @classmethod
  def of(cls, path: Path, cache: FeatureCache) -> "RealLabels":
    """Reads the file, and the rows that it is for, once.

    Raises:
      InputError: it is no list of lists of the cache's classes; or the rows are
        not numbered, not distinct, not all in it, or of other classes.
    """
    info = cache.info
    if info.id_source == POSITION_IDS:
      raise InputError(
        f"{cache.path}: its ids are places in the split, which say nothing of"
        " the images' numbers; extract it with --source.id-key file_name (TFDS)"
        " or --source.id-from-name (image folder), or import it with example_id"
        " = the number in the file's name."
      )
    content = read_content(path)
    lists = _lists(path, content, info.num_classes)
    met = np.zeros(len(lists.labels), bool)
    listed = agreeing = 0
    for block in cache_rows(cache).shown("ReaL labels", step_bar):
      labels = lists.of(block.example_id)
      index = block.example_id - lists.first_id
      if met[index].any() or len(np.unique(index)) < len(index):
        raise InputError(
          f"{cache.path}: two rows have the same number; extract it again."
        )
      met[index] = True
      listed += int((labels >= 0).any(axis=1).sum())
      agreeing += int((labels == block.label[:, None]).any(axis=1).sum())
    if agreeing < _LEAST_AGREEMENT * listed or not listed:
      raise InputError(
        f"{path}: of the {listed:,} rows of {cache.path} that it lists,"
        f" {agreeing:,} have their own label in the list: it is about other"
        " images, or numbers them or their classes otherwise."
      )
    statement = {
      "labels": "public",
      "mechanism": f"{REAL_LABELS}: right if any of an image's labels is met",
      "real_labels_sha256": hashlib.sha256(content).hexdigest(),
      "num_listed": listed,
      "num_left_out": len(cache) - listed,
      "original_label_in_list": agreeing / listed,
    }
    return cls(lists=lists, statement=statement)

  def evaluate(
    self, heads: list[LinearHead], cache: FeatureCache
  ) -> Evaluation:
    """Exact accuracies on the lists, and the assumption that they rest on."""
    hits = count_cache(heads, cache, self.lists)
    return Evaluation(
      scores=hits.accuracies_of_public_labels(),
      description=REAL_LABELS,
      statement=self.statement,
    )


def _lists(path: Path, content: bytes, num_classes: int) -> LabelLists:
  label = Annotated[int, msgspec.Meta(ge=0, lt=num_classes)]
  entries: list[list[int]] = parse_json(
    path,
    content,
    list[list[label]],
    f"it must list the classes of each image, integers in [0, {num_classes})",
  )
  longest = max([1, *(len(set(entry)) for entry in entries)])
  labels = np.full((len(entries), longest), -1, np.int32)
  for row, entry in zip(labels, entries, strict=True):
    distinct = sorted(set(entry))
    row[: len(distinct)] = distinct
  return LabelLists(labels=labels, first_id=_FIRST_NUMBER)
