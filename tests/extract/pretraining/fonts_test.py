import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.pretraining.characters import CHARACTERS
from oneshot_dp.extract.pretraining.fonts import Typeface, find_typefaces, glyph


@pytest.fixture(scope="module")
def typefaces() -> dict[str, Typeface]:
  return {face.name: face for face in find_typefaces(packages=())}


def test_matplotlib_alone_brings_some_to_train_on_and_some_to_hold_out(
  typefaces,
):
  held_out = {name for name, face in typefaces.items() if face.is_held_out}
  assert held_out == {"cmb10", "cmr10", "cmss10", "cmti10", "cmtt10"}
  assert {"DejaVuSans", "STIXGeneral"} <= typefaces.keys() - held_out
  # Fonts of symbols are none.
  for name in ("cmsy10", "STIXSizOneSymReg", "LastResortHE-Regular"):
    assert name not in typefaces
  for face in typefaces.values():
    drawn = {glyph(face, character).tobytes() for character in CHARACTERS}
    assert len(drawn) > 50


@pytest.mark.parametrize("character", ["0", "l", "W", "g"])
def test_a_glyph_is_cropped_to_its_ink(character, typefaces):
  for face in typefaces.values():
    ink = glyph(face, character)
    for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1]):
      assert edge.any()


def test_a_missing_package_is_named_with_what_installs_it():
  with pytest.raises(InputError) as caught:
    find_typefaces(packages=("font-of-nobody",))
  message = str(caught.value)
  assert "font-of-nobody" in message
  assert "pip install 'oneshot-dp[pretrain]'" in message
  assert "\n" not in message
