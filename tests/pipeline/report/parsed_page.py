"""A page, taken apart with the standard library's parser."""

import base64
import pathlib
from html.parser import HTMLParser

_VOID = {"br", "hr", "img", "link", "meta", "source"}
_LOADING = {"href", "src", "srcset", "action", "data", "poster"}


class ParsedPage(HTMLParser):
  """What is in a page: all that is to be read, with single spaces, is `text`.

  `links` are what attributes name that load something; `tables` have the cells
  of each, line by line.
  """

  def __init__(self, path: pathlib.Path):
    super().__init__()
    self.tags: set[str] = set()
    self.links: list[str] = []
    self.alts: list[str | None] = []
    self.ids: list[str] = []
    self.tables: list[list[list[str]]] = []
    self._words: list[str] = []
    self._open: list[str] = []
    self.feed(path.read_text())
    self.close()
    assert self._open == [], "elements that nothing closes"
    self.text = _spaced("".join(self._words))
    for line in (line for table in self.tables for line in table):
      line[:] = map(_spaced, line)

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

  def handle_starttag(self, tag, attrs):
    values = dict(attrs)
    self.tags.add(tag)
    self.links += [v or "" for name, v in attrs if name in _LOADING]
    if tag == "img":
      self.alts.append(values.get("alt"))
    if "id" in values:
      self.ids.append(values["id"] or "")
    if tag not in _VOID:
      self._open.append(tag)
    if tag == "table":
      self.tables.append([])
    if tag == "tr":
      self.tables[-1].append([])
    if tag in ("td", "th"):
      self.tables[-1][-1].append("")

  def handle_endtag(self, tag):
    assert self._open.pop() == tag, f"</{tag}> closes another element"

  def handle_data(self, data):
    if "style" in self._open:
      return
    self._words.append(data)
    if "td" in self._open or "th" in self._open:
      self.tables[-1][-1][-1] += data


def _spaced(words: str) -> str:
  return " ".join(words.split())
