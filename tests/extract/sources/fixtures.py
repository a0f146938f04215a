"""Images, tables and tars that tests write."""

import io
import json
import pathlib
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.job import listing
from oneshot_dp.extract.sources import open_source as sources


def reopen_from_listing(source: Any) -> Any:
  """What a worker makes of a source: it has no more than its listing."""
  header = listing.decode_header(listing.encode_header(source))
  if not source.IS_LISTED:
    return header
  section = listing.encode_section(source, range(len(source)))
  return listing.decode_section(header, section, 0)


def open_dataset(*location: Any, **config: Any) -> Any:
  """Opens paths as `extract` with these flags would."""
  words = tuple(str(word) for word in location)
  return sources.open_source(SourceConfig(location=words, **config))


def labels_of(source: Any) -> list[int]:
  """The labels of all examples, in order."""
  return [example.label for example in source]


def images_of(source: Any) -> list[bytes]:
  """Their bytes, in order."""
  return [example.image for example in source]


def units_of(source: Any) -> list[int]:
  """The ids of their owners, in order."""
  return [example.unit_id for example in source]


def encode_png(value: Any = 0) -> bytes:
  """A PNG of these pixels, or of 4 x 5 that all have one value."""
  pixels = value
  if not isinstance(value, np.ndarray):
    pixels = np.full((4, 5, 3), value, np.uint8)
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, "PNG")
  return file.getvalue()


def write_files(
  root: pathlib.Path, *paths: str, data: bytes | None = None
) -> None:
  """Writes files whose content is their path, as sources do not decode."""
  for path in paths:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(path.encode() if data is None else data)


def make_arrays(rows: int = 7, channels: int = 3) -> dict[str, Any]:
  """The arrays of an npz of three classes."""
  rng = np.random.default_rng(rows)
  return {
    "image": rng.integers(0, 256, (rows, 4, 5, channels), np.uint8),
    "label": np.arange(rows) % 3,
    "class_names": np.array(["cat", "dog", "eel"]),
  }


def write_table(
  path: pathlib.Path,
  images: Sequence[bytes | None],
  class_names: Sequence[str] = (),
  group_rows: int = 8,
  **columns: Sequence[Any],
) -> None:
  """Writes a table of the kind that the path ends in.

  Parquet as `datasets` 5.2 writes it, with so many rows to a group. Of tars as
  `webdataset` does, `label` is KEY.cls, and the others are fields of KEY.json.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix.lower() == ".tar":
    write_tar(path, _tar_members(images, columns))
  else:
    _write_parquet(path, images, class_names, group_rows, columns)


def _tar_members(
  images: Sequence[bytes | None], columns: Mapping[str, Sequence[Any]]
) -> dict[str, bytes | None]:
  members: dict[str, bytes | None] = {}
  for row, image in enumerate(images):
    fields = {name: values[row] for name, values in columns.items()}
    members[f"some/{row}.png"] = image or b""
    if "label" in fields:
      members[f"some/{row}.cls"] = str(fields.pop("label")).encode()
    members[f"some/{row}.json"] = json.dumps(fields).encode()
  return members


def _write_parquet(
  path: pathlib.Path,
  images: Sequence[bytes | None],
  class_names: Sequence[str],
  group_rows: int,
  columns: Mapping[str, Sequence[Any]],
) -> None:
  kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
  structs = [{"bytes": image, "path": None} for image in images]
  table = pa.table({"img": pa.array(structs, kind), **columns})
  if class_names:
    label = {"names": list(class_names), "_type": "ClassLabel"}
    features = {"label": label, "boxes": [{"_type": "Value"}]}
    metadata = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": metadata})
  pyarrow.parquet.write_table(table, path, row_group_size=group_rows)


def write_tar(path: pathlib.Path, members: Mapping[str, bytes | None]) -> None:
  """Writes a tar of these members; those without bytes are links."""
  with tarfile.open(path, "w") as tar:
    for name, data in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(data or b"")
      if data is None:
        info.type = tarfile.SYMTYPE
        info.linkname = "b.png"
      tar.addfile(info, io.BytesIO(data or b""))


def write_named_files(folder: pathlib.Path, names: str) -> list[str]:
  """Tables of one image each, whose bytes are the name of the file."""
  paths = names.split()
  for path in paths:
    write_table(folder / path, [path.encode()], label=[0])
  return paths


def write_npz(path: pathlib.Path, **others: Any) -> pathlib.Path:
  """Writes an npz of four images of two classes, and other arrays."""
  images = np.full((4, 2, 2, 3), 99, np.uint8)
  np.savez(path, image=images, label=np.array([0, 1, 0, 1]), **others)
  return path
