"""The digits and letters of the pretraining task, and their classes."""

import string

CHARACTERS = string.digits + string.ascii_letters

# In many a hand there is nothing between them.
_ALIKE = {"o": "0", "O": "0", "l": "1", "I": "1", "g": "9", "q": "9"}


def class_of(character: str) -> str:
  """A letter's class is the letter in lower case, unless a digit looks alike.

  >>> [class_of(c) for c in "7AaOlLg"]
  ['7', 'a', 'a', '0', '1', 'l', '9']
  """
  return _ALIKE.get(character, character.lower())


CLASSES = tuple(sorted({class_of(c) for c in CHARACTERS}))
"""Digits first, then letters."""
