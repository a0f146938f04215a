"""A page, taken apart with the standard library's parser."""

import base64
import dataclasses
import pathlib
from html.parser import HTMLParser
from typing import Self

_VOID = {"br", "hr", "img", "link", "meta", "source"}
_LOADING = {"href", "src", "srcset", "action", "data", "poster"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParsedPage:
  """What is in a page.

  Attributes:
    text: all that is to be read, with single spaces.
    tags: of all elements.
    links: what attributes name that load something.
    alts: of images; None where one has none.
    ids: of elements.
    tables: the cells of each, line by line.
  """

  text: str
  tags: set[str]
  links: list[str]
  alts: list[str | None]
  ids: list[str]
  tables: list[list[list[str]]]

  @classmethod
  def of(cls, path: pathlib.Path) -> Self:
    parser = _Parser()
    parser.feed(path.read_text())
    parser.close()
    assert parser.open == [], "elements that nothing closes"
    return cls(
      text=_spaced("".join(parser.words)),
      tags=parser.tags,
      links=parser.links,
      alts=parser.alts,
      ids=parser.ids,
      tables=[
        [[_spaced(cell) for cell in line] for line in table]
        for table in parser.tables
      ],
    )

  def svgs(self) -> list[str]:
    """Every picture that the page holds."""
    start = "data:image/svg+xml;base64,"
    return [
      base64.b64decode(link.removeprefix(start)).decode()
      for link in self.links
      if link.startswith(start)
    ]

  def table(self, first: str) -> list[list[str]]:
    """The lines of the table whose first heading this is."""
    (found,) = (table for table in self.tables if table[0][0] == first)
    return found[1:]


class _Parser(HTMLParser):
  def __init__(self):
    super().__init__()
    self.words: list[str] = []
    self.open: list[str] = []
    self.tags: set[str] = set()
    self.links: list[str] = []
    self.alts: list[str | None] = []
    self.ids: list[str] = []
    self.tables: list[list[list[str]]] = []

  def handle_starttag(self, tag, attrs):
    values = dict(attrs)
    self.tags.add(tag)
    self.links += [v or "" for name, v in attrs if name in _LOADING]
    if tag == "img":
      self.alts.append(values.get("alt"))
    if "id" in values:
      self.ids.append(values["id"] or "")
    if tag not in _VOID:
      self.open.append(tag)
    if tag == "table":
      self.tables.append([])
    if tag == "tr":
      self.tables[-1].append([])
    if tag in ("td", "th"):
      self.tables[-1][-1].append("")

  def handle_endtag(self, tag):
    assert self.open.pop() == tag, f"</{tag}> closes another element"

  def handle_data(self, data):
    if "style" in self.open:
      return
    self.words.append(data)
    if "td" in self.open or "th" in self.open:
      self.tables[-1][-1][-1] += data


def _spaced(words: str) -> str:
  return " ".join(words.split())
