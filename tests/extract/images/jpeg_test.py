"""JPEG: Pillow's pixels where a file is sound, and a refusal where it is not.

libjpeg makes pixels of whatever it is given, and Pillow reports none of what
it warns of.
"""

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from oneshot_dp.extract.images import DecodeError, decode_image, decoded
from tests.extract.images.decode_test import encode
from tests.extract.refusals import refused

END_MARK = b"\xff\xd9"


def photograph(height: int = 200, width: int = 301) -> np.ndarray:
  """Colors that change slowly, below noise, as in a photograph."""
  y, x = np.mgrid[:height, :width]
  pixels = np.stack([x * 180 // width, y * 180 // height, x * y // 50 % 180])
  noise = np.random.default_rng(0).integers(0, 70, pixels.shape)
  pixels = np.moveaxis(pixels + noise, 0, -1).astype(np.uint8)
  return np.ascontiguousarray(pixels)


PHOTOGRAPH = Image.fromarray(photograph())
KINDS = {
  "baseline": {},
  "progressive": {"progressive": True},
  "restart markers": {"restart_marker_rows": 1},
}


@pytest.fixture(params=KINDS)
def jpeg(request) -> bytes:
  return encode(PHOTOGRAPH, "JPEG", quality=85, **KINDS[request.param])


def pixels_of_pillow(data: bytes) -> np.ndarray:
  return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("quality", [5, 75, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_jpeg_has_the_pixels_that_pillow_makes(kind, quality, mode):
  image = PHOTOGRAPH.convert(mode)
  data = encode(image, "JPEG", quality=quality, **KINDS[kind])
  np.testing.assert_array_equal(decode_image(data), pixels_of_pillow(data))


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (17, 33), (40, 3)])
@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
def test_every_usual_subsampling_and_size_gives_pillows_pixels(
  subsampling, size
):
  data = simplejpeg.encode_jpeg(
    photograph(*size), quality=80, colorsubsampling=subsampling
  )
  np.testing.assert_array_equal(decode_image(data), pixels_of_pillow(data))


def test_colors_that_are_stored_as_rgb_are_read_as_such():
  data = encode(PHOTOGRAPH, "JPEG", quality=90, keep_rgb=True)
  np.testing.assert_array_equal(decode_image(data), pixels_of_pillow(data))


def test_an_unusual_subsampling_is_read_by_pillow():
  """simplejpeg has no name for it, and cannot read the header."""
  data = bytearray(encode(PHOTOGRAPH.resize((64, 32)), "JPEG", subsampling=0))
  # As many blocks in another order: Cb of twice the resolution of Y and Cr.
  frame = data.index(b"\xff\xc0")
  data[frame + 5 : frame + 9] = b"\0\x40\0\x40"
  data[frame + 14] = 0x22
  with pytest.raises(ValueError, match="subsampling"):
    simplejpeg.decode_jpeg(bytes(data))
  decoded_pixels = decode_image(bytes(data))
  np.testing.assert_array_equal(decoded_pixels, pixels_of_pillow(bytes(data)))


def damaged(data: bytes) -> dict[str, bytes]:
  """What lost transfers and dying disks make of a file, with its end mark."""
  middle = len(data) // 2
  hole = len(data) // 8
  return {
    "half missing": data[:middle] + END_MARK,
    "a tenth missing": data[: 9 * len(data) // 10] + END_MARK,
    "a hole of zeros": data[:middle] + bytes(hole) + data[middle + hole :],
    "4 kB lost": data[:middle] + data[middle + 4096 :],
    "ten bytes missing": data[:-12] + END_MARK,
  }


@pytest.mark.parametrize("damage", damaged(b""))
def test_a_damaged_jpeg_that_ends_in_its_end_mark_is_refused(jpeg, damage):
  data = damaged(jpeg)[damage]
  pixels_of_pillow(data)  # which says nothing
  with refused("its decoder says: Corrupt JPEG data", DecodeError):
    decode_image(data)


def test_a_damaged_jpeg_of_four_inks_is_refused():
  data = encode(PHOTOGRAPH.convert("CMYK"), "JPEG")
  with refused("Corrupt JPEG data", DecodeError):
    decode_image(data[: len(data) // 2] + END_MARK)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_jpeg_that_lacks_its_end_mark_only_is_read_with_a_warning(
  jpeg, missing
):
  with decoded(jpeg) as whole, decoded(jpeg[:-missing]) as cut:
    np.testing.assert_array_equal(cut.pixels, whole.pixels)
    assert whole.warning == ""
    assert "no end mark" in cut.warning


def test_a_jpeg_of_four_inks_may_lack_its_end_mark():
  data = encode(PHOTOGRAPH.convert("CMYK"), "JPEG", progressive=True)
  np.testing.assert_array_equal(decode_image(data[:-2]), pixels_of_pillow(data))


@pytest.mark.parametrize("missing", [3, 20, 5000])
def test_a_jpeg_that_is_cut_short_is_refused(jpeg, missing):
  with refused("its decoder says", DecodeError):
    decode_image(jpeg[:-missing])


def test_what_follows_the_end_mark_is_not_read(jpeg):
  """Cameras append previews and maps of depth."""
  with decoded(jpeg) as alone, decoded(jpeg + bytes(1000)) as followed:
    np.testing.assert_array_equal(followed.pixels, alone.pixels)
    assert followed.warning == ""


def test_scan_parameters_that_some_phones_get_wrong_are_no_damage():
  data = bytearray(encode(PHOTOGRAPH, "JPEG"))
  scan = data.index(b"\xff\xda")
  data[scan + 2 + data[scan + 3] - 2] = 0  # the last coefficient: 0, not 63
  np.testing.assert_array_equal(
    decode_image(bytes(data)), pixels_of_pillow(bytes(data))
  )


@pytest.mark.slow
def test_a_jpeg_of_a_thousand_scans_is_refused_before_it_is_decoded():
  image = encode(Image.new("L", (8000, 8000)), "JPEG", progressive=True)
  last_scan = image[image.rindex(b"\xff\xda") : -2]

  with pytest.raises(DecodeError, match="the JPEG has 1,006 scans"):
    decode_image(image[:-2] + 1000 * last_scan + image[-2:])
