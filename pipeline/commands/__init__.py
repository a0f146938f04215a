"""The commands. A NEW ONE GOES HERE, as one row, and in a file of its own.

A command's module has `Flags`, a frozen dataclass whose docstring is its help,
and `run(flags) -> Answer`. Only the module of the command that is asked for is
imported, and it imports what is heavy within `run`.
"""

from typing import NamedTuple


class Command(NamedTuple):
  """Where a command is, and what it does in a line."""

  module: str
  what: str


COMMANDS = {
  "extract": Command("extract", "embed images once with a frozen backbone"),
  "import": Command("import_", "make a cache of embeddings that you have"),
  "inspect": Command("inspect", "what a path is, and what is wrong with it"),
  "train": Command("train", "train one private head"),
  "sweep": Command("sweep", "train heads for many epsilons, and score them"),
  "evaluate": Command("evaluate", "score a head on labelled embeddings"),
  "predict": Command("predict", "label images with a head"),
  "export": Command("export", "a head with its backbone, for other tools"),
  "report": Command("report", "a page about a run, for people"),
  "budget": Command("budget", "what was spent of a data set, and its cap"),
  "verify": Command(
    "verify", "check a cache, or a head and who vouches for it"
  ),
  "audit": Command("audit", "attack heads, and compare with their epsilon"),
  "demo": Command("demo", "all of it on handwritten digits, in seconds"),
}
