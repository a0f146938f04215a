import numpy as np
import pytest

from oneshot_dp.extract.pretraining.characters import (
  CHARACTERS,
  CLASSES,
  class_of,
)
from oneshot_dp.extract.pretraining.fonts import find_typefaces, glyph
from oneshot_dp.extract.pretraining.glyphs import (
  BOX,
  SIDE,
  Glyphs,
  printed_glyphs,
  written_glyphs,
)
from oneshot_dp.extract.pretraining.strokes import SKELETONS


@pytest.fixture(scope="module")
def written() -> Glyphs:
  return written_glyphs(1, seed=0)


def test_every_character_has_a_skeleton_and_a_class():
  assert SKELETONS.keys() == set(CHARACTERS)
  for ways in SKELETONS.values():
    for drawing in ways:
      assert all(len(stroke) >= 2 for stroke in drawing)
  assert CLASSES[:10] == tuple("0123456789")
  assert {class_of(c) for c in CHARACTERS} == set(CLASSES)


def test_a_seed_fixes_what_is_written(written):
  np.testing.assert_array_equal(written_glyphs(1, seed=0).maps, written.maps)
  other = written_glyphs(1, seed=1)
  np.testing.assert_array_equal(other.labels, written.labels)
  differ = (other.maps != written.maps).any(axis=(1, 2))
  assert differ.all()


def test_a_written_map_is_a_pen_path_that_fills_the_box(written):
  assert written.is_written.all()
  assert written.maps.max() <= 0
  near = written.maps >= -8  # within a pixel of the path
  margin = (SIDE - BOX) // 2
  for path in near:
    rows, columns = path.nonzero()
    assert max(np.ptp(rows), np.ptp(columns)) == pytest.approx(BOX, abs=3)
    for along in (rows, columns):
      assert along.min() >= margin - 2
      assert along.max() < SIDE - (margin - 2)


def test_a_printed_map_is_positive_where_there_is_ink():
  face = next(f for f in find_typefaces(()) if f.name == "DejaVuSans")
  printed = printed_glyphs([face])
  assert len(printed) == len(CHARACTERS)
  for character in "0LTH":
    distances = printed.maps[CHARACTERS.index(character)]
    share = (distances > 0).sum() / BOX**2
    ink = glyph(face, character)
    assert share == pytest.approx(ink.sum() / max(ink.shape) ** 2, rel=0.1)
