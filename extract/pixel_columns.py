"""Columns of Arrow that hold pixels, as Ray, Daft and Spark write them.

| writer | column |
|---|---|
| Arrow | `fixed_shape_tensor` of uint8 |
| Ray, Daft | a list of uint8, whose shape the schema notes beside it |
| Ray, Daft | a struct of `data` and `shape` |
| Spark | a struct of `data`, `height`, `width` and `nChannels`, in BGR |
| Daft | a struct of `data`, `height`, `width` and `channel` |
"""

import json
import math

import numpy as np
import pyarrow as pa
from jaxtyping import UInt8

Shape = tuple[int, ...]

_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
_SPARK_SIDES = ("height", "width", "nChannels")
_DAFT_SIDES = ("height", "width", "channel")


def has_pixels(field: pa.Field) -> bool:
  """Whether a column has uint8 pixels [h, w, c]."""
  if noted_shape(field):
    return True
  if not is_pixel_struct(field.type):
    return False
  data = field.type.field("data").type
  return data in _BINARY or _is_list_of_bytes(data)


def is_pixel_struct(kind: pa.DataType) -> bool:
  """Whether a type is a struct of pixels and their shape."""
  if not isinstance(kind, pa.StructType):
    return False
  names = set(kind.names)
  has_shape = "shape" in names
  for sides in (_SPARK_SIDES, _DAFT_SIDES):
    has_shape = has_shape or names.issuperset(sides)
  return has_shape and "data" in names


def noted_shape(field: pa.Field) -> Shape:
  """The shape [h, w, c] of all cells of a column of pixels; () of any other.

  Arrow's own tensors have it in their type, and those of Ray and Daft in what
  the schema notes beside a list.
  """
  shape: list[int] = []
  noted = field.metadata or {}
  name = noted.get(b"ARROW:extension:name", b"")
  if isinstance(field.type, pa.FixedShapeTensorType):
    # (A tensor whose sides are stored in another order has pixels elsewhere.)
    order = field.type.permutation
    is_in_order = order is None or list(order) == sorted(order)
    if field.type.value_type == pa.uint8() and is_in_order:
      shape = field.type.shape
  # A note of another program may be anything: one that is not understood makes
  # the column one of other numbers, and no error.
  elif name and _is_list_of_bytes(field.type):
    try:
      details = json.loads(noted[b"ARROW:extension:metadata"])
      if name == b"daft.super_extension":
        details = details["datatype"]["FixedShapeTensor"][1]
      shape = [int(side) for side in details]
    except (ValueError, KeyError, TypeError, RecursionError):
      return ()
  return tuple(shape) if len(shape) == 3 else ()


def _is_list_of_bytes(kind: pa.DataType) -> bool:
  is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
  is_list = is_list or pa.types.is_fixed_size_list(kind)
  return is_list and kind.value_type == pa.uint8()


def pixels_of(cell: pa.Scalar, shape: Shape) -> UInt8[np.ndarray, "h w c"]:
  """The pixels of a cell that is not null.

  Args:
    cell: of a column that `has_pixels`.
    shape: of its column, from `noted_shape`.

  Returns:
    RGB or gray pixels.

  Raises:
    ValueError: they are not as many as the shape says.
  """
  if isinstance(cell, pa.ExtensionScalar):
    cell = cell.value
  # A struct says the shape of each cell by itself, so its images may differ in
  # size.
  is_bgr = False
  if isinstance(cell, pa.StructScalar):
    names = cell.type.names
    is_bgr = "nChannels" in names
    if "shape" in names:
      shape = tuple(cell["shape"].as_py() or ())
    else:
      sides = _SPARK_SIDES if is_bgr else _DAFT_SIDES
      shape = tuple(cell[side].as_py() for side in sides)
    cell = cell["data"]
  if isinstance(cell, pa.DictionaryScalar):
    cell = cell.value
  if not cell.is_valid or None in shape:
    raise ValueError("an image without its pixels, or their shape")
  if cell.type in _BINARY:
    values = np.frombuffer(cell.as_buffer(), np.uint8)
  else:
    values = cell.values.to_numpy()
  # Shapes come from the file. Without this comparison a wrong one would make
  # another picture of the same bytes, or a view of others.
  if len(shape) != 3 or math.prod(shape) != len(values):
    raise ValueError(f"{len(values):,} values are no image of shape {shape}")
  pixels = values.reshape(shape)
  if is_bgr:  # as OpenCV has them: blue, green, red and perhaps alpha
    pixels = pixels[..., 2::-1]
  return np.ascontiguousarray(pixels)
