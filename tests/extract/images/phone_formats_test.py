"""AVIF, which Pillow reads, and HEIC, which an extra does."""

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.extract.images import decode_image, decoded
from tests.extract.images.decode_test import STORED, encode, gradient
from tests.pipeline.command_line import start

pillow_heif = pytest.importorskip("pillow_heif")
pillow_heif.register_heif_opener()
KINDS = {"AVIF": {"quality": 95}, "HEIF": {"quality": 95}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_phone_has_its_pixels(kind):
  pixels = gradient(96, 160)
  data = encode(Image.fromarray(pixels), kind, **KINDS[kind])
  with decoded(data) as result:
    assert result.warning == ""
    error = np.abs(result.pixels.astype(int) - pixels)
  assert error.max() <= 12
  assert error.mean() <= 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_a_file_of_a_phone_is_upright(kind, orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  pixels = gradient(96, 160)
  stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](pixels)))
  stored.info["exif"] = exif.tobytes()
  data = encode(stored, kind, exif=exif.tobytes(), **KINDS[kind])
  error = np.abs(decode_image(data).astype(int) - pixels)
  assert error.mean() <= 3


@pytest.mark.slow
def test_without_the_extra_heic_is_left_out_by_name(tmp_path):
  for name in "a/1.png", "b/2.png":
    (tmp_path / name).parent.mkdir()
    Image.fromarray(gradient()).save(tmp_path / name)
  heic = encode(Image.fromarray(gradient(64, 64)), "HEIF")
  (tmp_path / "b" / "3.heic").write_bytes(heic)
  missing = "import sys; sys.modules['pillow_heif'] = None"
  command = start(["inspect", tmp_path], first=missing)
  out, _ = command.communicate()
  assert command.returncode == 0
  assert "WARNING: 1 photograph of a format that is not read" in out
  assert "b/3.heic'; convert them to JPEG or PNG, or pip install" in out
