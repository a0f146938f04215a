"""How large an image may be, and what all threads decode at once."""

import threading

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.extract import image_files, images
from oneshot_dp.extract.images import (
  DecodeError,
  Preprocessing,
  decode_image,
  resize_and_crop,
)
from oneshot_dp.extract.threads import MemoryBudget
from tests.extract.images.decode_test import encode
from tests.extract.refusals import refused


def test_an_image_of_too_many_pixels_is_refused_and_the_flag_is_named():
  data = encode(Image.new("1", (101, 100)), "PNG")
  with refused("101 x 100 pixels.* give --max-pixels 10100", DecodeError):
    decode_image(data, max_pixels=10_000)
  assert decode_image(data, max_pixels=10_100).shape == (100, 101, 3)


@pytest.mark.slow
def test_an_image_above_pillows_own_limit_is_read_where_asked():
  data = encode(Image.new("1", (13_500, 13_300)), "PNG")
  with refused("give --max-pixels 179550000", DecodeError):
    decode_image(data)
  assert image_files.peak_bytes(data, 180_000_000) > 180_000_000


def test_an_image_of_a_side_that_no_jpeg_has_is_refused():
  """To resize its rows first would take 200 times its memory."""
  data = encode(Image.new("1", (1, 65_537)), "PNG")
  with refused("no side may have more than 65,536 pixels", DecodeError):
    decode_image(data)
  with refused("at most 65,536 pixels per side"):
    decode_image(np.zeros((65_537, 1, 3), np.uint8))


@pytest.mark.parametrize(
  "preprocessing",
  [
    Preprocessing(image_size=32),
    Preprocessing(image_size=32, resize=40),
    Preprocessing(image_size=32, resize=40, keep_aspect=False),
    Preprocessing(image_size=32, resize=40, resample="bilinear"),
  ],
)
def test_a_large_image_is_resized_in_parts_to_the_same_pixels(
  monkeypatch, preprocessing
):
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (301, 223, 3), dtype=np.uint8)
  at_once = resize_and_crop(pixels, preprocessing)
  monkeypatch.setattr(images, "_RESIZED_AT_ONCE", 1000)
  monkeypatch.setattr(images, "_ROWS_AT_ONCE", 64)
  in_parts = resize_and_crop(pixels, preprocessing)
  np.testing.assert_array_equal(in_parts, at_once)


def test_threads_wait_until_the_memory_that_they_want_is_free():
  budget = MemoryBudget(100)
  begun = threading.Event()

  def take_half() -> None:
    with budget.take(50):
      begun.set()

  thread = threading.Thread(target=take_half)
  with budget.take(60):
    thread.start()
    assert not begun.wait(0.1)
  assert begun.wait(5)
  thread.join()


def test_one_that_wants_more_than_there_is_waits_until_it_is_alone():
  budget = MemoryBudget(100)
  with budget.take(10**9):
    pass
  with budget.take(100):
    pass
