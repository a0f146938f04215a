"""From the bytes of an image file to its pixels."""

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from oneshot_dp.configs.errors import InputError, one_line

# A closed list: Pillow's other readers (PostScript, PDF, …) run more code on
# bytes that nobody has looked at than a data set of photographs needs.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")


class DecodeError(ValueError):
  """Why these bytes are not an image that can be read in full."""


def decode_image(image: bytes | np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
  """RGB pixels of an encoded image, or of an array that holds pixels already.

  The same as torchvision's and TFDS's loaders where they agree:

  * EXIF orientation is applied.
  * Transparency is dropped, not blended: a transparent pixel keeps the colour
    that is stored under it.
  * 16 bits per channel become 8 by keeping the high byte.
  * Palette, grayscale, 1-bit and CMYK images are converted to RGB; colour
    profiles are not applied. Of an animation, the first frame is read.

  Args:
    image: an encoded JPEG, PNG, WebP, BMP or GIF; or uint8 pixels [h, w, 3]
      (returned as they are, uncopied), [h, w, 1] or [h, w].

  Raises:
    DecodeError: the bytes are of another format, damaged, cut short, or claim
      more pixels than Pillow's limit against decompression bombs.
    InputError: an array of another dtype or shape: a fault of the data set,
      not of one image.
  """
  if isinstance(image, np.ndarray):
    shape = image.shape + (1,) * (image.ndim == 2)
    fits = len(shape) == 3 and shape[2] in (1, 3) and 0 not in shape
    if image.dtype != np.uint8 or not fits:
      raise InputError(
        f"image of dtype {image.dtype}, shape {list(image.shape)}: pixels must"
        " be uint8 [h, w, 3], [h, w, 1] or [h, w], and not empty."
      )
    pixels = image.reshape(shape)
    return pixels if shape[2] == 3 else np.repeat(pixels, 3, axis=2)
  try:
    with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
      opened.load()
      try:
        upright = ImageOps.exif_transpose(opened)
      except SyntaxError:  # damaged EXIF says nothing; the pixels are sound
        upright = opened
      return np.asarray(_to_rgb(upright))
  except MemoryError:
    raise  # this machine's trouble, not the image's
  except Image.UnidentifiedImageError as error:
    is_photo = image[4:8] == b"ftyp" or image[:4] in (b"II*\0", b"MM\0*")
    advice = " (HEIC, AVIF or TIFF: convert it to JPEG or PNG)" * is_photo
    raise DecodeError(
      f"{len(image)} bytes that are not a readable {', '.join(_FORMATS)}"
      f" image{advice}"
    ) from error
  # Pillow's readers let through whatever their parsing of damaged bytes
  # stumbles on: OSError, SyntaxError, struct.error, IndexError, zlib.error, …
  except Exception as error:
    said = f"image cannot be decoded: {one_line(error)}"
    raise DecodeError(said) from error


def _to_rgb(image: Image.Image) -> Image.Image:
  if image.mode.startswith("I"):
    # Pillow's own conversion of 16-bit grayscale clips at 255.
    high_byte = (np.asarray(image) >> 8).astype(np.uint8)
    image = Image.fromarray(high_byte)
  # Otherwise Pillow warns that convert() will not blend, which is the intent.
  image.info.pop("transparency", None)
  return image.convert("RGB")
