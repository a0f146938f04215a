"""Handwritten digits as the TFDS data set `sklearn_digits`: to try things on.

The 1,797 digits that come with scikit-learn, 8 x 8 pixels in 17 shades of
grey, from the test set of "Optical Recognition of Handwritten Digits" (E.
Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998).
"""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Float
from PIL import Image

from oneshot_dp.configs.errors import InputError

# Row i of scikit-learn's table is a test image where i is a multiple of this:
# 360 test images, 1,437 training images.
TEST_EVERY = 5


class SklearnDigits(tfds.core.GeneratorBasedBuilder):
  """The builder: splits `train` (1437) and `test` (360), classes "0".."9"."""

  VERSION = tfds.core.Version("1.0.0")

  def download_and_prepare(self, **options: Any) -> None:
    """See TFDS; makes no folder where there is no scikit-learn."""
    try:
      import sklearn  # noqa: F401
    except ImportError as error:
      raise InputError(
        "the digits are part of scikit-learn, which is not installed: "
        "pip install 'oneshot-dp[demo]'."
      ) from error
    super().download_and_prepare(**options)

  def _log_download_bytes(self) -> None:
    """Not said: nothing is downloaded."""

  def _log_download_done(self) -> None:
    """Nor this."""

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description="scikit-learn's load_digits, every fifth row for testing.",
      homepage="https://doi.org/10.24432/C50P49",
      features=tfds.features.FeaturesDict(
        {
          "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
          "label": tfds.features.ClassLabel(names=[str(i) for i in range(10)]),
        }
      ),
      # The rows keep scikit-learn's order.
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    del dl_manager  # Nothing to download: scikit-learn brings the data.
    return {
      "train": self._generate_examples(test=False),
      "test": self._generate_examples(test=True),
    }

  def _generate_examples(
    self, test: bool
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    from sklearn import datasets

    digits = datasets.load_digits()
    for row, (shades, label) in enumerate(
      zip(digits.images, digits.target, strict=True)
    ):
      if (row % TEST_EVERY == 0) == test:
        yield row, {"image": _png(shades), "label": int(label)}


def _png(shades: Float[np.ndarray, "8 8"]) -> io.BytesIO:
  """Encodes shades 0 (paper) to 16 (ink) as levels 0 to 255.

  In bytes, because TFDS would need TensorFlow to encode an array.
  """
  pixels = np.rint(shades * (255 / 16)).astype(np.uint8)
  png = io.BytesIO()
  Image.fromarray(pixels).save(png, "PNG")
  png.seek(0)
  return png
