"""Metadata of a prepared TFDS folder, looked at before TFDS reads them."""

import contextlib
import json
import os
import re
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.files import open_regular

_MAX_METADATA_BYTES = 1 << 20
"""A larger file is refused: ImageNet-21k's names take 300 kB."""
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_TEMPLATE_KEYS = ("filepathTemplate", "filepath_template")


def check_metadata(folder: str) -> None:
  """Raises InputError where a file that TFDS would read whole is not sound.

  The names of classes are a text file, and what the data set is are JSON files;
  in a folder from somewhere else they may be a device, or a file of terabytes
  that takes no room on the disk. A folder that does not exist has none.
  """
  for parent, _, names in os.walk(folder):
    for name in names:
      if name.endswith((".txt", ".json")):
        path = os.path.join(parent, name)
        with open_regular(path, _MAX_METADATA_BYTES) as file:
          if name in ("dataset_info.json", "features.json"):
            _check_metadata_values(path, file.read())


def _check_metadata_values(path: str, content: bytes) -> None:
  """Refuses metadata by which TFDS would run code, or fill the memory.

  TFDS imports the module of every class of features that it does not know, and
  formats the names of files by templates, which may ask for any width.
  """
  # Features of older versions lie in JSON as text that is JSON again.
  pending: list[Any] = [content.decode(errors="replace")]
  while pending:
    value = pending.pop()
    if isinstance(value, str):
      # What is no JSON is a plain text, or TFDS says what is wrong with it.
      with contextlib.suppress(ValueError, RecursionError):
        pending.append(json.loads(value))
    elif isinstance(value, list):
      pending.extend(value)
    elif isinstance(value, dict):
      for key, text in value.items():
        if key in _CLASS_KEYS and _is_foreign_class(text):
          raise InputError(
            f"{path!r} has features of {text!a:.100}, Python code that would be"
            " run to read them: prepare the data set with features of TFDS's"
            " own."
          )
        if key in _TEMPLATE_KEYS and re.search(r"{\w*[^\w}]", str(text)):
          raise InputError(
            f"{path!r} is damaged: a name of files is {text!a:.100}; prepare"
            " the data set again."
          )
      pending.extend(value.values())


def _is_foreign_class(name: Any) -> bool:
  """Whether TFDS would import what is not its own to know a class."""
  is_class = isinstance(name, str) and "." in name
  return is_class and not name.startswith("tensorflow_datasets.")
