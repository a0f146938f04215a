"""Where images come from: what every source of labelled images looks like.

A source is one split of a data set, indexable and of known length, so that a
shard of the extraction job is a range of its indices. Images come undecoded:
decoding is work for the job's threads, and an image that cannot be decoded is
theirs to report, by `where`.
"""

import dataclasses
import re
import typing
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import UInt8

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.fetch_ahead import Buffer

_EXTENSION = re.compile(r"\.[A-Za-z]\w*$")
# What int64 surely holds.
_LAST_NUMBER = re.compile(r"(?<!\d)\d{1,18}$")


# Not comparable: `==` on the image array has no single truth value.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Example:
  """One labelled image.

  >>> pixels = np.zeros((32, 32, 3), np.uint8)
  >>> example = Example(example_id=17, label=0, image=pixels)
  >>> example.example_id, example.unit_id
  (17, None)

  Attributes:
    example_id: names the example within its source, the same at every run.
    label: class index, in [0, len(class_names)).
    image: the bytes of an image file (JPEG, PNG, WebP ...), or the pixels,
      uint8 [h, w, 3] or [h, w, 1].
    unit_id: whose it is; None where the privacy unit is an example.
  """

  example_id: int
  label: int
  image: bytes | UInt8[np.ndarray, "h w c"]
  unit_id: int | None = None


@typing.runtime_checkable
class Source(Protocol):
  """One split of a data set: `source[i]` for i in range(len(source)).

  Formal guarantees: `source[i]` is the same example at every run and in every
  process, each example of the split is at exactly one index, no two share an
  `example_id`, and any number of threads may read at once. A source belongs to
  its process: workers open their own, they are not sent one.

  Attributes:
    name: public name of the data set.
    version: public version, "" if there is none.
    class_names: of label 0, 1, ...: public, from the data set's metadata,
      never from its labels, which are private.
    privacy_unit: public name of what `unit_id` numbers; "example" where
      examples have none.
    id_source: public name of what an `example_id` is read from; "position"
      where it is the index.
    listing: what it consists of, in order: the name and size of each file, or
      a hash. Two sources with one listing are the same. Private, as they are.
  """

  name: str
  version: str
  class_names: tuple[str, ...]
  privacy_unit: str
  id_source: str
  listing: Buffer

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Example:
    """Returns the example at `index`, in [0, len(self)).

    Raises:
      IndexError: the index is outside the split.
      InputError: the example's label is not one of the classes.
      RunError: the example cannot be read any more.
    """
    ...

  def where(self, index: int) -> str:
    """Says where the example is, for errors: a path, `cifar10/train[17]`."""
    ...


def number_of(name: str | bytes, place: str) -> int:
  """The number that a file's name ends in, its extension aside.

  A place in a split names nothing outside it; published files about the images
  of a data set (other labels, say) go by the names of their files.

  >>> number_of("val/ILSVRC2012_val_00000017.JPEG", "imagenet")
  17
  """
  text = name if isinstance(name, str) else name.decode(errors="replace")
  found = _LAST_NUMBER.search(_EXTENSION.sub("", text))
  if found is None:
    raise InputError(
      f"{place}: {text!r} does not end in a number of at most 18 digits, so"
      " there is no example_id in it: leave source.id_key or"
      " source.id_from_name out."
    )
  return int(found[0])


def shortened(names: Sequence[str]) -> str:
  """The first twenty names, for people."""
  more = f", … ({len(names):,} in all)" if len(names) > 20 else ""
  return ", ".join(map(repr, names[:20])) + more


def chosen(
  place: str,
  field: str,
  key: str | None,
  candidates: Sequence[str],
  usual: str | None = None,
) -> str:
  """The key that was asked for, the only candidate, or the usual one."""
  if key is None:
    key = candidates[0] if len(candidates) == 1 else usual
  if key in candidates:
    return str(key)
  problem = " must be set" if key == usual else f"={key!r} is not one of them"
  raise InputError(
    f"{place}: source.{field}{problem}: choose from {', '.join(candidates)}."
  )


def classes(
  names: Sequence[str] | None, num_classes: int | None, place: str
) -> tuple[str, ...]:
  """The public class names, or numbers, which are never read off the labels.

  `place` says it. InputError: neither is given, or both, or a name twice.
  """
  if names is None:
    if num_classes is None:
      raise InputError(
        f"{place!r} names no classes: add class_names, or give"
        " source.num_classes (labels are private, so neither is read off them)."
      )
    if num_classes < 1:
      raise InputError(f"source.num_classes={num_classes} must be positive.")
    return tuple(str(label) for label in range(num_classes))
  if len(set(names)) < len(names):
    twice = next(name for name in names if list(names).count(name) > 1)
    raise InputError(f"{place!r} has the class {twice!r} more than once.")
  if num_classes not in (None, len(names)):
    raise InputError(
      f"source.num_classes={num_classes} but {place!r} has {len(names)} "
      "class_names: leave num_classes out."
    )
  return tuple(names)
