"""Opens a source: a row of the table says which class reads which config."""

import importlib

from oneshot_dp.configs import extract_config
from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.sources.example import Source
from oneshot_dp.extract.storage.fetch_ahead import Buffer

# A new source is a row here; its module is only imported where it is asked for,
# because each needs its own libraries (TFDS takes most of a second).
_READERS: dict[type[extract_config.Source], tuple[str, str]] = {
  extract_config.ArraysSource: ("arrays", "ArrayExamples"),
  extract_config.ImageFolderSource: ("image_folder", "FolderExamples"),
  extract_config.TableSource: ("table.examples", "TableExamples"),
  extract_config.TfdsSource: ("tfds", "TfdsExamples"),
  extract_config.UnlabelledSource: ("unlabelled", "UnlabelledImages"),
}


def open_source(
  config: extract_config.Source, split: str, listing: Buffer | None = None
) -> Source:
  """Opens one split of a data set.

  Opening reads metadata (and, of arrays, the data), so a worker process opens
  its own source once. A TFDS data set that is not on disk yet is downloaded
  and prepared here: open it once before workers do.

  >>> import tempfile
  >>> import numpy as np
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   np.savez(
  ...     f"{folder}/pets.npz",
  ...     image=np.zeros((2, 8, 8, 3), np.uint8),
  ...     label=np.array([1, 0]),
  ...     class_names=np.array(["cat", "dog"]),
  ...   )
  ...   config = extract_config.ArraysSource(path=f"{folder}/pets.npz")
  ...   source = open_source(config, "train")
  >>> len(source), source.class_names, source[0].label
  (2, ('cat', 'dog'), 1)

  Args:
    config: which data set: one of the sources of `configs.extract_config`.
    split: "train", "test" ...; TFDS also takes "train[:1000]" and the like, by
      position. (Parts in percent are the job's: `SplitPart`.)
    listing: what it must consist of: the `listing` of the source where the job
      was started. A folder is then not listed again.

  Returns:
    The source.

  Raises:
    InputError: there is no such data set or split, or it is not what it
      should be.
    RunError: a TFDS data set cannot be downloaded or prepared; the source is
      not what was listed.
  """
  module, reader = _READERS[type(config)]
  home = importlib.import_module(f"oneshot_dp.extract.sources.{module}")
  source = getattr(home, reader)(config, split, listing)
  if listing not in (None, source.listing):
    raise RunError(
      f"{source.name}, {split}, is not here what it was where the job was"
      " started; give every worker the same, and let nothing change it."
    )
  return source
