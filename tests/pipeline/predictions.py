"""Tables that `predict` writes, and what has to be in them."""

import csv
import io

from tests.pipeline import image_heads


def lines_of(file):
  """The lines of a table of `predict`, by the names of its columns."""
  return list(csv.DictReader(io.StringIO(file.read_text("utf-8"))))


def column_of(file, name):
  """One column of it."""
  return [line[name] for line in lines_of(file)]


def expected(head, count=100):
  """The classes of the first digits, as strings; computed without a command."""
  embedding = image_heads.embeddings(
    image_heads.glyph_vit(), image_heads.digits()[0][:count]
  )
  return [str(c) for c in image_heads.classes_of(head.head, embedding)]
