"""Typefaces that pip packages bring, and their glyphs.

Matplotlib's are always there. Packages that announce theirs by the entry
points of the `fonts` project (https://github.com/pimoroni/fonts-python) are
found by these; the ones that the published weights saw are the extra
`pretrain`.
"""

import dataclasses
import functools
import importlib.metadata
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from PIL import Image, ImageDraw, ImageFont

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.pretraining.characters import CHARACTERS

PACKAGES = (
  "font-amatic-sc",
  "font-caladea",
  "font-fredoka-one",
  "font-hanken-grotesk",
  "font-intuitive",
  "font-manrope",
  "font-roboto",
  "font-source-sans-pro",
  "font-source-serif-pro",
)
"""What the extra `pretrain` installs."""

HELD_OUT = ("cm", "Intuitive", "Caladea")
"""What the names of typefaces that are never trained on begin with.

A serif, a sans and a typewriter face of Computer Modern, a face drawn by hand,
and a book face: of every kind one.
"""

# They have other signs in the places of letters.
_SYMBOLS = ("cmex10", "cmmi10", "cmsy10")
_GROUPS = ("fonts_ttf", "fonts_otf")
_EM = 120
# Symbol fonts and fonts of last resort have less.
_MIN_DISTINCT = 58


@dataclasses.dataclass(frozen=True, kw_only=True)
class Typeface:
  """A font file that has every digit and letter, by its stem."""

  name: str
  path: pathlib.Path

  @property
  def is_held_out(self) -> bool:
    """Whether it is for evaluation only."""
    return self.name.startswith(HELD_OUT)


def find_typefaces(packages: Sequence[str] = PACKAGES) -> list[Typeface]:
  """Matplotlib's typefaces, and those of font packages, one of each name."""
  try:
    import matplotlib
  except ImportError as error:
    raise _missing("matplotlib") from error
  folder = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf"
  files = {path.stem: path for path in folder.glob("*.ttf")}
  for package in packages:
    files = _files(package) | files
  typefaces = [
    Typeface(name=name, path=files[name])
    for name in sorted(files.keys() - set(_SYMBOLS))
  ]
  return [typeface for typeface in typefaces if _is_complete(typeface)]


def glyph(typeface: Typeface, character: str) -> Bool[np.ndarray, "h w"]:
  """A character's ink, cropped to it; the em is 120 pixels."""
  font = _opened(typeface.path)
  left, top, right, bottom = font.getbbox(character)
  size = max(1, round(right - left)), max(1, round(bottom - top))
  image = Image.new("L", size)
  ImageDraw.Draw(image).text((-left, -top), character, fill=255, font=font)
  ink = np.asarray(image) > 127
  rows = np.flatnonzero(ink.any(axis=1))
  columns = np.flatnonzero(ink.any(axis=0))
  if not len(rows):
    return ink[:0]
  return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


@functools.lru_cache(maxsize=1)
def _opened(path: pathlib.Path) -> ImageFont.FreeTypeFont:
  # Not Raqm, which not every Pillow has.
  return ImageFont.truetype(
    str(path), _EM, layout_engine=ImageFont.Layout.BASIC
  )


def _missing(package: str) -> InputError:
  return InputError(
    f"typefaces of {package} are missing: pip install 'oneshot-dp[pretrain]'."
  )


def _files(package: str) -> dict[str, pathlib.Path]:
  try:
    points = importlib.metadata.distribution(package).entry_points
  except importlib.metadata.PackageNotFoundError as error:
    raise _missing(package) from error
  paths = [
    pathlib.Path(path)
    for group in reversed(_GROUPS)
    for point in points.select(group=group)
    for path in point.load().values()
  ]
  return {path.stem: path for path in paths}


def _is_complete(typeface: Typeface) -> bool:
  """Whether it draws all characters, and not one box for all of them."""
  drawn = {glyph(typeface, character).tobytes() for character in CHARACTERS}
  return b"" not in drawn and len(drawn) >= _MIN_DISTINCT
