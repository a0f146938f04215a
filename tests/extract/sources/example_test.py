import pytest

from oneshot_dp.extract.sources.example import number_of
from tests.extract.refusals import refused


@pytest.mark.parametrize(
  ("name", "number"),
  [
    ("ILSVRC2012_val_00000017.JPEG", 17),
    (b"ILSVRC2012_val_00050000.JPEG", 50000),
    ("n01440764/n01440764_10026.jpeg", 10026),
    ("img.0001", 1),
    ("17", 17),
    ("a.7.tar.png", None),
    ("clip.mp4", None),
    ("12-.png", None),
    ("", None),
    ("x_" + "9" * 18, 10**18 - 1),
    ("x_" + "9" * 19, None),
    (b"\xff\xfe.png", None),
  ],
)
def test_the_number_is_the_last_of_the_stem(name, number):
  if number is not None:
    assert number_of(name, "here") == number
    return
  with refused(r"^here: .* does not end in a number"):
    number_of(name, "here")
