"""The model card of a head, and how all templates of this package are filled.

A card is made of a checked receipt and nothing else, so that it is as public as
the receipt. Its owner may edit it, all but the line that names the receipt.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import sha256_of
from oneshot_dp.linear_dp import accounting
from oneshot_dp.pipeline.heads.receipt import NOT_PRIVATE

_FOLDER = Path(__file__).parents[1] / "templates"
_LARGEST_USEFUL_EPSILON = 10.0
_MOST_DIGITS = 13  # float64 has 15
_MARKDOWN_ESCAPES = str.maketrans({c: f"\\{c}" for c in r"\`*_{}[]<>#|!&~"})


def template_environment(
  filters: Mapping[str, Callable[..., str]] | None = None,
) -> jinja2.Environment:
  """The templates of this package, with these filters beside Jinja's own.

  A template is compiled once per environment, so keep the environment. Values
  of HTML templates are escaped; a value that is missing is an error.
  """
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER),
    autoescape=_is_html,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  environment.filters["noise"] = accounting.format_rounded_down
  environment.filters.update(filters or {})
  return environment


def render_card(
  receipt: Mapping[str, Any], *, is_head_folder: bool = True
) -> str:
  """Writes the Markdown page of a head.

  It ends with a digest of the whole receipt, so that a change of anything in
  the one, names and words included, no longer fits the other.

  Args:
    receipt: a checked receipt.
    is_head_folder: whether the page lies in a head's folder, and says how to
      load that.

  Returns:
    The text of README.md; public.
  """
  epsilon = receipt["follows"]["epsilon"] or 0.0
  delta = receipt["stated"]["delta"] or 0.0
  return _CARDS.get_template("card.md.j2").render(
    stated=receipt["stated"],
    follows=receipt["follows"],
    NOT_PRIVATE=NOT_PRIVATE,
    is_head_folder=is_head_folder,
    most=percent_rounded_up(right_guesses(epsilon, delta)),
    is_weak=epsilon > _LARGEST_USEFUL_EPSILON,
    size=describe_size(receipt["stated"]),
    digest_line=digest_line(receipt),
  )


def digest_line(receipt: Mapping[str, Any]) -> str:
  """Returns the line of a card that names its receipt.

  Args:
    receipt: the parsed receipt; white space in its file does not matter.
  """
  digest = sha256_of(receipt)
  return f"This page is about the receipt with the digest {digest}."


def is_edited(card: bytes, path: Path, receipt: Mapping[str, Any]) -> bool:
  """Returns whether a card is not as `render_card` writes it.

  Args:
    card: the content of its file.
    path: its file, for messages.
    receipt: the checked receipt beside it.

  Raises:
    InputError: it does not name this receipt, by the digest in its last line.
  """
  # Whoever publishes a head adds a contact and a license, so the text may
  # change. The digest must stay: an edited receipt, or the card of another
  # head, does not go unnoticed.
  if digest_line(receipt).encode() not in card:
    raise InputError(
      f"{path} is damaged: it does not name the receipt beside it; put back"
      " both files as train wrote them, or, if only the page was edited, its"
      f" last line: {digest_line(receipt)}"
    )
  return card != render_card(receipt).encode()


def describe_size(stated: Mapping[str, Any]) -> str:
  """Says how many examples a head was trained on.

  Of a part only the mean number is public, so that it says "about".

  Args:
    stated: what a checked receipt states.
  """
  number = f"{stated['num_examples']:,} examples"
  part = Part.parse(stated["rows"])
  if part.is_whole:
    return number
  return f"about {number}, {part.last - part.first} % of the data set"


def right_guesses(epsilon: float, delta: float) -> float:
  """The most often that a guess at even odds can be right.

      (e^ε + δ) / (e^ε + 1)

  Somebody who guesses whether a row was there is right in no larger share of
  cases, whatever else is known.

  >>> round(right_guesses(1.0, 0.0), 3), right_guesses(0.0, 0.0)
  (0.731, 0.5)

  Args:
    epsilon: ε, 0 or more; any size.
    delta: δ, from 0 to 1.

  Returns:
    A share from one half to 1.

  Source: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential
  Privacy", ICML 2015, theorem 2.1.
  """
  # In e^−ε, because e^ε overflows where the answer is 1 long since.
  shrunk = math.exp(-epsilon)
  return (1 + delta * shrunk) / (1 + shrunk)


def percent_rounded_up(share: float) -> str:
  """Returns a bound in percent, with digits enough to be below 100.

  What a page says that an adversary can reach may not be below it, and "at most
  100 %" would say nothing.

  >>> percent_rounded_up(0.73105), percent_rounded_up(1 - 2e-9)
  ('73.11', '99.9999998')
  """
  for digits in range(2, _MOST_DIGITS):
    scale = 10**digits
    # Less a little, so that a share such as 0.732 is not rounded up to 73.21.
    bound = math.ceil(100 * scale * share - 1e-9) / scale
    if bound < 100:
      return f"{bound:.{digits}f}".rstrip("0").rstrip(".")
  return "100"


def _is_html(name: str | None) -> bool:
  return ".html" in str(name)


def _escape_markdown(value: object) -> str:
  """A name in which no character is taken for Markdown or HTML."""
  return str(value).translate(_MARKDOWN_ESCAPES)


_CARDS = template_environment(
  {
    "printable": accounting.format_rounded_up,
    "marked": _escape_markdown,
  }
)
