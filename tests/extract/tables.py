"""Parquet, Arrow and tar files, as `datasets` and `webdataset` write them."""

import io
import json
import pathlib
import tarfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

KINDS = ("parquet", "arrow", "tar")


def png(pixels: np.ndarray) -> bytes:
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, "PNG")
  return file.getvalue()


def hugging_face(class_names: Sequence[str]) -> dict[str, str]:
  """What `datasets` 5.2 puts into a schema."""
  features = {
    "img": {"_type": "Image"},
    "label": {"names": list(class_names), "_type": "ClassLabel"},
  }
  return {"huggingface": json.dumps({"info": {"features": features}})}


def write_table(
  path: pathlib.Path,
  images: Sequence[bytes],
  class_names: Sequence[str] = (),
  rows: int = 8,
  **columns: Sequence[Any],
) -> None:
  """Writes the kind that the path ends in, of so many rows to a group.

  Of tars, `label` is KEY.cls, and the others are fields of KEY.json.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == ".tar":
    _write_tar(path, images, columns)
    return
  kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
  structs = [{"bytes": image, "path": None} for image in images]
  table = pa.table({"img": pa.array(structs, kind), **columns})
  if class_names:
    table = table.replace_schema_metadata(hugging_face(class_names))
  if path.suffix == ".parquet":
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return
  with pa.ipc.new_stream(path, table.schema) as stream:
    stream.write_table(table, max_chunksize=rows)


def _write_tar(
  path: pathlib.Path, images: Sequence[bytes], columns: dict[str, Any]
) -> None:
  with tarfile.open(path, "w") as tar:
    for row, image in enumerate(images):
      own = {name: values[row] for name, values in columns.items()}
      files = {"png": image, "cls": str(own.pop("label")).encode()}
      files["json"] = json.dumps(own).encode()
      for extension, data in files.items():
        info = tarfile.TarInfo(f"some/{row:05d}.{extension}")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
