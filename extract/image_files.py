"""Decodes the bytes of an image file, or says why that is not possible.

Pillow reads all formats, but of JPEG it reads the header only: libjpeg fills up
what is missing or damaged with gray and with the colors beside it, and warns of
that where Pillow does not listen. simplejpeg runs the same libjpeg-turbo, makes
the same pixels, and says what libjpeg warned of.
"""

import io
from typing import NamedTuple

import numpy as np
import simplejpeg
from jaxtyping import Bool, UInt8
from PIL import ExifTags, Image, ImageFile

from oneshot_dp.configs.errors import one_line

try:
  import pillow_heif
except ImportError:  # the extra `heic` is not installed
  pillow_heif = None

_HEIC_SUFFIXES = (".heic", ".heif")
_HEIC_ADVICE = "pip install 'oneshot-dp[heic]' to read HEIC"
MAX_SIDE = 1 << 16
"""Pixels of a side, as in JPEG: a longer image grows where it is resized."""
_END_MARK = b"\xff\xd9"
_SCAN_MARK = b"\xff\xda"
_SCAN_BYTES = 10  # its header alone
_MOST_SCANNED_PIXELS = 2 * 10**10
"""Each scan of a JPEG is a pass over all of its pixels. A photograph has about
ten; but a scan may take a hundred bytes, and a file of 2 MB hours. (In a film
behind a photograph the mark may stand by chance.)"""
# Some phones write it of photographs that are sound. (libjpeg's words.)
_HARMLESS_WARNING = "Invalid SOS parameters"
# Bytes per pixel that decoding holds at most, with its result: measured with
# Pillow 12.3 and rounded up. WebP's reader has three canvases of four bytes;
# AVIF and HEIC have planes beside them, a progressive JPEG its coefficients.
_BYTES_PER_PIXEL = {"WEBP": 16, "AVIF": 12, "HEIF": 10}
_PROGRESSIVE_BYTES = 12
_OTHER_BYTES = 7
_ROWS_AT_ONCE = 256
_HIGH_BYTE_OF_14_BITS = 1 << 6
_FEW = 1 / 32


IMAGE_SUFFIXES: tuple[str, ...] = (
  ".jpg",
  ".jpeg",
  ".jpe",
  ".jfif",
  ".pjpeg",
  ".pjp",
  ".png",
  ".apng",
  ".webp",
  ".bmp",
  ".dib",
  ".gif",
  ".avif",
)
"""Suffixes of image files, in lower case."""
# A closed list: Pillow's other readers (PostScript, PDF, …) run more code on
# bytes that nobody has looked at than a data set of photographs needs.
_FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "AVIF")
if pillow_heif is not None:
  pillow_heif.register_heif_opener(thumbnails=False)
  IMAGE_SUFFIXES += _HEIC_SUFFIXES
  _FORMATS += ("HEIF",)
# Pillow's own limit cannot be raised for one call; `peak_bytes` has another.
Image.MAX_IMAGE_PIXELS = None


class DecodeError(ValueError):
  """Some bytes are not an image, or not one that can be read in full."""


class BitDepthError(DecodeError):
  """A file of 16 bits per sample may use fewer, and no depth was stated."""


class DecodedImage(NamedTuple):
  """A decoded image file.

  Attributes:
    pixels: RGB, upright.
    warning: what is odd about a file that could be read in full, or "".
  """

  pixels: UInt8[np.ndarray, "h w 3"]
  warning: str = ""


def reading_advice(suffixes: set[str]) -> str:
  """Advises what to do about photographs with suffixes that are not read."""
  advice = "convert them to JPEG or PNG"
  if suffixes & set(_HEIC_SUFFIXES):
    advice += f", or {_HEIC_ADVICE}"
  return advice


def peak_bytes(image: bytes, max_pixels: int) -> int:
  """Estimates the memory that decoding an image takes, by its header.

  Args:
    image: the bytes of an image file, of which only the header is read.
    max_pixels: an image of more is refused.

  Returns:
    Bytes at the moment when most are in use, estimated by the number of pixels,
    the format, and whether a JPEG is progressive.

  Raises:
    DecodeError: it is of another format, damaged, or has too many pixels.
  """
  with _opened(image) as opened:
    # By the header alone: a few bytes may claim gigabytes of pixels, and memory
    # that runs out ends the whole machine.
    width, height = opened.size
    pixels = width * height
    if pixels > max_pixels or max(opened.size) > MAX_SIDE:
      fault = f"{pixels:,} pixels are more than {max_pixels:,}"
      advice = f"give --max-pixels {pixels} if they are to be read"
      if max(opened.size) > MAX_SIDE:
        fault = f"no side may have more than {MAX_SIDE:,} pixels"
        advice = "cut it into several"
      raise DecodeError(
        f"the image has {width:,} x {height:,} pixels, and {fault}: {advice}"
      )
    if "progressive" in opened.info:
      return pixels * _PROGRESSIVE_BYTES
    return pixels * _BYTES_PER_PIXEL.get(opened.format or "", _OTHER_BYTES)


def decode_file(image: bytes, bit_depth: int | None) -> DecodedImage:
  """Decodes an image file whose header `peak_bytes` has looked at.

  Args:
    image: the bytes of the file.
    bit_depth: how many bits of 16-bit samples are used; None if not known.

  Raises:
    DecodeError: the bytes are damaged or cut short, or the samples are not of
      that depth.
  """
  with _opened(image) as opened:
    try:
      if opened.format in ("JPEG", "MPO"):
        decoded = _decode_jpeg(image, opened)
      else:
        decoded = DecodedImage(_decode_with_pillow(image, opened, bit_depth))
      pixels = _upright(decoded.pixels, opened)
    except (MemoryError, DecodeError):
      raise  # memory is this machine's trouble, not the image's
    # Pillow's readers let through whatever their parsing of damaged bytes
    # stumbles on: OSError, SyntaxError, struct.error, IndexError, zlib.error, …
    except Exception as error:
      raise _cannot_be_decoded(error) from error
  return decoded._replace(pixels=pixels)


def _opened(image: bytes) -> ImageFile.ImageFile:
  """An image of which only the header was read."""
  try:
    return Image.open(io.BytesIO(image), formats=_FORMATS)
  except MemoryError:
    raise
  except Image.UnidentifiedImageError as error:
    raise _unreadable(image) from error
  except Exception as error:
    raise _cannot_be_decoded(error) from error


def _cannot_be_decoded(error: Exception) -> DecodeError:
  return DecodeError(f"its decoder says: {one_line(error)}")


def _unreadable(image: bytes) -> DecodeError:
  """Returns an error that names the format of unreadable bytes, if known."""
  message = (
    f"{len(image)} bytes that are not a readable {', '.join(_FORMATS)} image"
  )
  if image[4:8] == b"ftyp":
    message += " (HEIC, AVIF or of their kind: convert it to JPEG or PNG"
    if pillow_heif is None:
      message += f", or {_HEIC_ADVICE}"
    message += ")"
  elif image[:4] in (b"II*\0", b"MM\0*"):
    message += " (TIFF: convert it to JPEG or PNG)"
  return DecodeError(message)


def _decode_jpeg(image: bytes, opened: ImageFile.ImageFile) -> DecodedImage:
  """Decodes a JPEG; DecodeError: libjpeg warns of what it had to make up."""
  # Strict: what libjpeg warns of is an error here. A photograph that is half
  # gray would else become a row like any other.
  colorspace = {"L": "GRAY", "CMYK": "CMYK"}.get(opened.mode, "RGB")
  if "progressive" in opened.info:
    _refuse_many_scans(image, opened.width * opened.height)
  warning = ""
  try:
    pixels = simplejpeg.decode_jpeg(image, colorspace)
  except ValueError as error:
    # A file whose data are whole may lack its end mark, as where a transfer
    # was stopped: with the mark, libjpeg has nothing to warn of.
    try:
      pixels = simplejpeg.decode_jpeg(image + _END_MARK, colorspace)
      warning = "the JPEG has no end mark, and is whole without it"
      image += _END_MARK
    except ValueError:
      _refuse_damaged(image, colorspace, error)
      # simplejpeg cannot read the header, and Pillow may.
      return DecodedImage(_rgb(opened))
  if opened.mode == "CMYK":  # whose conversion rounds in another way
    with _opened(image) as whole:
      return DecodedImage(_rgb(whole), warning)
  if opened.mode == "L":
    pixels = np.repeat(pixels, 3, axis=2)
  return DecodedImage(pixels, warning)


def _refuse_many_scans(image: bytes, num_pixels: int) -> None:
  """Raises DecodeError if a progressive JPEG has far too many scans."""
  # To count takes a few percent of the time to decode: of small files it is
  # known that they have no room for so many.
  most = _MOST_SCANNED_PIXELS // num_pixels
  if len(image) < _SCAN_BYTES * most:
    return
  num_scans = image.count(_SCAN_MARK)
  if num_scans > most:
    raise DecodeError(
      f"the JPEG has {num_scans:,} scans, and would take hours: save it anew"
    )


def _refuse_damaged(image: bytes, colorspace: str, error: ValueError) -> None:
  """Raises DecodeError if libjpeg can decode a JPEG, but warns of damage."""
  if str(error).startswith(_HARMLESS_WARNING):
    return
  try:
    simplejpeg.decode_jpeg(image, colorspace, strict=False)
  except ValueError:
    return  # it is no warning
  raise _cannot_be_decoded(error) from error


def _decode_with_pillow(
  image: bytes, opened: ImageFile.ImageFile, bit_depth: int | None
) -> UInt8[np.ndarray, "h w 3"]:
  transparency = opened.info.get("transparency")
  raw_modes = [str(tile.args) for tile in opened.tile]
  if any(raw_mode.endswith(";16B") for raw_mode in raw_modes):
    pixels = _rgb_of_16_bits(image, opened, bit_depth)
  else:
    pixels = _rgb(opened)
  _refuse_drawn_in_alpha(opened, transparency, pixels)
  return pixels


def _refuse_drawn_in_alpha(
  opened: ImageFile.ImageFile,
  transparency: bytes | int | tuple[int, ...] | None,
  pixels: UInt8[np.ndarray, "h w 3"],
) -> None:
  """Refuses a picture whose colors are all the same, and whose alpha is not.

  Icons and signatures are often black everywhere, and drawn by what of it is
  transparent. That is dropped, so nothing would be left of them.

  Args:
    opened: the image, decoded.
    transparency: of its palette, as its file states it.
    pixels: its colors.

  Raises:
    DecodeError: the picture is in its transparency alone.
  """
  is_with_palette = opened.mode == "P" and transparency is not None
  if not (is_with_palette or opened.mode in ("LA", "PA", "RGBA")):
    return
  color = pixels[0, 0]
  if not ((pixels[0] == color).all() and (pixels == color).all()):
    return
  if is_with_palette:
    alpha_of = np.full(256, 255, np.uint8)
    if isinstance(transparency, bytes):
      alpha_of[: len(transparency)] = np.frombuffer(transparency, np.uint8)
    else:
      alpha_of[transparency] = 0
    alpha = alpha_of[np.asarray(opened)]
  else:
    alpha = np.asarray(opened.getchannel("A"))
  if alpha.min() < alpha.max():
    raise DecodeError(
      "all of its colors are the same, and its picture is in its transparency,"
      " which is not read: paint it on a background"
    )


def _rgb_of_16_bits(
  image: bytes, opened: ImageFile.ImageFile, bit_depth: int | None
) -> UInt8[np.ndarray, "h w 3"]:
  """Decodes a PNG of 16 bits per sample, keeping the highest eight in use.

  Cameras and scanners of 10, 12 or 14 bits store their numbers as they are, in
  samples of 16 bits, and programs those of 8. Read as 16 bits they are nearly
  black, and nothing in the file says so; but hardly any of them reaches 2^14:
  dead pixels and letters that were drawn on top may be white. A picture that
  uses 16 bits and stays below that nearly everywhere is darker than a quarter
  of white: rare enough that a person is asked. A black one is black at every
  depth.

  Raises:
    DecodeError: nearly all samples are that small, and `bit_depth` is None; or
      many need more bits than `bit_depth`.
  """
  raw_mode = str(opened.tile[0].args)
  high = _rgb(opened)
  if bit_depth == 16:
    return high
  if bit_depth is None:
    if not _are_few(high >= _HIGH_BYTE_OF_14_BITS):
      return high
    if high.any() or _low_bytes(image, raw_mode).any():
      raise BitDepthError(
        "the image has 16 bits per sample, and hardly any sample is above 2^14:"
        " give --bit-depth 8, 10, 12 or 14 if only so many bits are used, or 16"
        " if the image is meant to be that dark"
      )
    return high
  # What is said of a camera is said of the samples that it made: white of 16
  # bits is white at its depth, too.
  is_brighter = (high.astype(np.uint16) >> (bit_depth - 8)) > 0
  if not _are_few(is_brighter):
    raise DecodeError(
      f"the image has samples of more than --bit-depth {bit_depth} bits"
    )
  # The eight highest bits that are used lie in both bytes: those of the high
  # one move up, and the upper ones of the low byte follow.
  low = _low_bytes(image, raw_mode)
  pixels = (high << (16 - bit_depth)) | (low >> (bit_depth - 8))
  return np.where(is_brighter, np.uint8(255), pixels)


def _are_few(is_bright: Bool[np.ndarray, "h w 3"]) -> bool:
  """Whether so few samples are bright that they may be dead pixels or text."""
  return bool(np.count_nonzero(is_bright) <= _FEW * is_bright.size)


def _low_bytes(image: bytes, raw_mode: str) -> UInt8[np.ndarray, "h w 3"]:
  """The low byte of each 16-bit sample, which Pillow drops.

  Pillow keeps the byte that comes first in the file, and the second one where
  it is told that samples are little-endian. It has no such mode for gray with
  alpha, whose four bytes per pixel are read as if they were of four colors.
  """
  with _opened(image) as opened:
    if raw_mode.startswith("I"):
      return _repeated(np.asarray(opened).astype(np.uint8))
    little_endian = raw_mode.replace("16B", "16L")
    is_gray_alpha = raw_mode.startswith("LA")
    if is_gray_alpha:
      little_endian = "RGBA"
    opened.tile = [opened.tile[0]._replace(args=little_endian)]
    if is_gray_alpha:
      return _repeated(np.asarray(opened)[..., 1])
    return _rgb(opened)


def _repeated(gray: UInt8[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
  return np.repeat(gray[..., None], 3, axis=2)


def _rgb(image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
  """Converts to RGB, some rows at a time: Pillow takes four bytes per pixel."""
  image.load()
  # Otherwise Pillow warns that convert() will not blend, which is the intent.
  image.info.pop("transparency", None)
  pixels = np.empty((image.height, image.width, 3), np.uint8)
  for top in range(0, image.height, _ROWS_AT_ONCE):
    bottom = min(top + _ROWS_AT_ONCE, image.height)
    rows = image.crop((0, top, image.width, bottom))
    if image.mode.startswith("I"):
      # Pillow's own conversion of 16-bit grayscale clips at 255.
      pixels[top:bottom] = (np.asarray(rows) >> 8)[..., None]
    else:
      pixels[top:bottom] = np.asarray(rows.convert("RGB"))
  return pixels


def _upright(
  pixels: UInt8[np.ndarray, "h w 3"], image: Image.Image
) -> UInt8[np.ndarray, "_ _ 3"]:
  """The pixels, turned as the image's EXIF orientation says."""
  try:
    orientation = image.getexif().get(ExifTags.Base.Orientation)
  except SyntaxError:  # damaged EXIF says nothing; the pixels are sound
    return pixels
  # EXIF's eight orientations are a transpose or none, and then up to two flips.
  if orientation in (5, 6, 7, 8):
    pixels = pixels.swapaxes(0, 1)
  if orientation in (2, 3, 6, 7):
    pixels = pixels[:, ::-1]
  if orientation in (3, 4, 7, 8):
    pixels = pixels[::-1]
  return pixels
