"""Ids that name an example wherever it is found: the numbers in file names.

A place in a split names nothing outside it, and published files about the
images of a data set (other labels, say) go by the names of their files.
"""

import re

from oneshot_dp.configs.errors import InputError

_EXTENSION = re.compile(r"\.[A-Za-z]\w*$")
# What int64 surely holds.
_LAST_NUMBER = re.compile(r"(?<!\d)\d{1,18}$")


def number_of(name: str | bytes, place: str) -> int:
  """The number that a file's name ends in, its extension aside.

  >>> number_of("val/ILSVRC2012_val_00000017.JPEG", "imagenet")
  17

  Args:
    name: of the file.
    place: where it was found, for errors.

  Raises:
    InputError: it ends in no number, or in one that int64 does not hold.
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
