import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import WHOLE, Part


@pytest.mark.parametrize(
  ("text", "first", "last"),
  [
    ("", 0, 100),
    ("[:80%]", 0, 80),
    ("[80%:]", 80, 100),
    (" [10% : 20%] ", 10, 20),
    ("[:]", 0, 100),
    ("[0%:100%]", 0, 100),
  ],
)
def test_what_is_read_is_what_is_written(text, first, last):
  part = Part.parse(text)
  assert (part.first, part.last) == (first, last)
  assert Part.parse(str(part)) == part
  assert part.is_whole == (part == WHOLE) == (str(part) == "")


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("[80:]", r"give percentages in brackets, such as '\[80%:\]'"),
    ("[:1000]", r"'\[:1000%\]'|by their content"),
    ("80%:", r"such as '\[80%:\]'"),
    ("[10:20%]", r"'\[10%:20%\]'"),
    ("[80%]", "is not a part"),
    ("train[:80%]", "is not a part"),
    ("[:1.5%]", "is not a part"),
    ("[-20%:]", "is not a part"),
    ("[:101%]", "must rise"),
    ("[50%:50%]", "must rise"),
    ("[60%:40%]", "must rise"),
    ("\x1b[2J", r"'\\x1b\[2J' is not a part"),
  ],
)
def test_what_is_no_part(text, said):
  with pytest.raises(InputError, match=said) as caught:
    Part.parse(text)
  assert str(caught.value).isprintable()


def test_the_mean_is_public_and_never_nothing():
  parts = [Part(10 * i, 10 * i + 10) for i in range(10)]
  assert sum(part.mean_of(1000) for part in parts) == 1000
  assert Part(0, 1).mean_of(3) == 1
  assert WHOLE.mean_of(17) == 17
