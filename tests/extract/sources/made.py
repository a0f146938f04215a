"""Images, tables and tars that tests make."""

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
from oneshot_dp.extract.sources import open_source as sources


def again(source: Any) -> Any:
  """What a worker makes of it, who has no more than its listing."""
  return sources.deserialize_source(sources.serialize_source(source))


def opened(*location: Any, **settings: Any) -> Any:
  words = tuple(map(str, location))
  return sources.open_source(SourceConfig(location=words, **settings))


def png(value: Any = 0) -> bytes:
  is_one = not isinstance(value, np.ndarray)
  pixels = np.full((4, 5, 3), value, np.uint8) if is_one else value
  Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
  return file.getvalue()


def write(root: pathlib.Path, *paths: str, data: bytes | None = None) -> None:
  """Writes files, whose content is their path: sources do not decode."""
  for path in paths:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(path.encode() if data is None else data)


def arrays(rows: int = 7, channels: int = 3) -> dict[str, Any]:
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
  rows: int = 8,
  **columns: Sequence[Any],
) -> None:
  """Writes the kind that the path ends in, of so many rows to a group.

  Of Parquet as `datasets` 5.2 does; of tars, `label` is KEY.cls, and the others
  are fields of KEY.json, as `webdataset` has it.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix.lower() == ".tar":
    members: dict[str, bytes] = {}
    for row, image in enumerate(images):
      own = {name: values[row] for name, values in columns.items()}
      members[f"some/{row}.png"] = image or b""
      if "label" in own:
        members[f"some/{row}.cls"] = str(own.pop("label")).encode()
      members[f"some/{row}.json"] = json.dumps(own).encode()
    return write_tar(path, members)
  kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
  structs = [{"bytes": image, "path": None} for image in images]
  table = pa.table({"img": pa.array(structs, kind), **columns})
  if class_names:
    label = {"names": list(class_names), "_type": "ClassLabel"}
    features = {"label": label, "boxes": [{"_type": "Value"}]}
    said = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": said})
  pyarrow.parquet.write_table(table, path, row_group_size=rows)


def write_tar(path: pathlib.Path, members: Mapping[str, bytes | None]) -> None:
  """A tar of these members; those without bytes are links."""
  with tarfile.open(path, "w") as tar:
    for name, data in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(data or b"")
      if data is None:
        info.type, info.linkname = tarfile.SYMTYPE, "b.png"
      tar.addfile(info, io.BytesIO(data or b""))
