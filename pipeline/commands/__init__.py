"""The commands, each in one file, and how their flags are declared.

A command's module has `Flags`, a frozen dataclass whose docstring is its help,
and `run(flags) -> Answer`. Only the module of the command that is typed is
imported, and it imports what is heavy within `run`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

from oneshot_dp.configs.extract_config import BIT_DEPTHS
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.extract.places import parse_place

FLAG = "flag"
"""The key of a field's metadata under which its `Flag` lies."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
  """Declares the flag that sets a field of `Flags`, with its help.

      cache: Path = Flag(parse=Path, form="CACHE", help="…").required()
      rows: str = ROWS.default("")

  Attributes:
    help: a sentence that stands alone; the default is added to it.
    form: the form of the value, such as "FILE"; "" is a switch without one.
    parse: makes the value of a word; raises ValueError.
    choices: the words that there are, where it is a closed list.
    name: without the dashes, where it differs from the field's name.
    group: the heading in the help under which it stands.
    several: takes any number of values.
    positional: has no name on the command line.
    hint: what to do instead, where `parse` refuses a word.
  """

  help: str
  form: str = ""
  parse: Callable[[str], Any] = str
  choices: tuple[str, ...] = ()
  name: str = ""
  group: str = ""
  several: bool = False
  positional: bool = False
  hint: str = ""

  def within(self, group: str) -> "Flag":
    """Returns the flag under a heading of the help."""
    return dataclasses.replace(self, group=group)

  def with_default_in_words(self, default: str) -> "Flag":
    """Returns the flag with words for what happens where it is left out."""
    text = self.help.removesuffix(".")
    return dataclasses.replace(self, help=f"{text} (default: {default}).")

  def required(self) -> Any:
    """Declares a field that must be given."""
    return dataclasses.field(metadata={FLAG: self})

  def default(self, value: Any) -> Any:
    """Declares a field that may be left out."""
    return dataclasses.field(default=value, metadata={FLAG: self})

  def off(self) -> Any:
    """Declares a switch, which is off unless it is given."""
    return dataclasses.field(default=False, metadata={FLAG: self})


class CommandFlags:
  """What the command line asks of the flags of every command.

  Attributes:
    EXAMPLES: command lines that are shown at the end of the help.
    STOP_SECONDS: how long the command may take to end after Ctrl-C.
  """

  EXAMPLES: ClassVar[tuple[str, ...]] = ()
  STOP_SECONDS: ClassVar[float] = 2.0

  @property
  def is_one_of_hosts(self) -> bool:
    """Whether other processes run the same command together with this one."""
    return False

  @classmethod
  def split_beam_options(
    cls, words: Sequence[str]
  ) -> tuple[tuple[str, ...], list[str]]:
    """Splits words that are no flags of ours into Beam's options and others."""
    return (), list(words)


# Flags that several commands have are declared once: what a flag means, and
# what its help says, is then the same everywhere.
HEAD_FOLDER = Flag(
  parse=parse_place,
  form="HEAD",
  positional=True,
  help="Folder of the head, as train or sweep wrote it; on a disk, gs:// or"
  " s3://.",
)
HEAD_KINDS: tuple[str, ...] = get_args(HeadName)
HEAD_KIND = Flag(
  form="|".join(HEAD_KINDS),
  choices=HEAD_KINDS,
  help="Kind of head: auto adapts to the budget; lamb is the paper's single"
  " step, and adam and momentum are other single steps; prototypes and"
  " least_squares are there to compare with.",
)
TEST_CACHE = Flag(
  parse=parse_place, form="CACHE", help="Cache with the labeled test rows."
)
ROWS = Flag(
  form="PART",
  help="Use only a part of the cache, such as '[:80%]' or '[80%:]'; rows are"
  " chosen by their content (default: all rows).",
)
DELTA = Flag(
  parse=float,
  form="DELTA",
  help="Delta of the guarantee; must be below 1/n for n training rows.",
)
PRIVATE_EVAL = Flag(
  parse=float,
  form="EPSILON",
  help="Treat the test labels as private: print noisy accuracies, and charge"
  " this epsilon for them (default: labels are public).",
)
ALLOW_DUPLICATES = Flag(
  help="Score the test set even if more than 1 % of it, up to a half, are"
  " private rows.",
)
LEDGER = Flag(
  parse=parse_place,
  form="FILE",
  help="Ledger of what was spent, a file on a disk (default:"
  " $ONESHOT_DP_LEDGER, or oneshot-dp/ledger.sqlite in the user's state"
  " folder).",
)
WEAK_PRIVACY = Flag(help="Allow delta ≥ 1/n, or epsilon > 20.")
NOISE_SEED = Flag(
  parse=int,
  form="SEED",
  help="Draw reproducible noise from a seed, for research: the result is NOT"
  " PRIVATE (default: noise of the operating system).",
)
DRY_RUN = Flag(
  help="Check everything and print the cost, but charge and write nothing.",
)
BALANCED = Flag(help="Weight all classes equally, however rare.")
WEIGHTS = Flag(
  form="FILE",
  help="Weights of the head's backbone, a file or URL, if they are not where"
  " extract read them.",
)
BACKBONE_FILE = Flag(
  form="FILE.py:FUNCTION",
  help="Your own backbone function, if it is not where extract read it.",
)
BIT_DEPTH = Flag(
  parse=int,
  form="|".join(map(str, BIT_DEPTHS)),
  choices=tuple(map(str, BIT_DEPTHS)),
  help="How many bits 16-bit files really use, so that images of 8 to 14"
  " bits do not come out nearly black.",
)
PIXEL_LIMIT = Flag(
  parse=int,
  form="N",
  help="Refuse images of more pixels than this, before they are decoded; raise"
  " it for larger photographs, which take up to 16 bytes per pixel.",
)


# Headings in the help of commands that train.
DATA_GROUP = "data"
PRIVACY_GROUP = "privacy"
HEAD_GROUP = "head"
RUN_GROUP = "run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingFlags(CommandFlags):
  """The flags that train and sweep share."""

  cache: Path = Flag(
    parse=parse_place,
    form="CACHE",
    group=DATA_GROUP,
    help="Cache with the private training rows.",
  ).required()
  rows: str = ROWS.within(DATA_GROUP).default("")
  unlabeled: Path | None = Flag(
    parse=parse_place,
    form="CACHE",
    group=DATA_GROUP,
    help="Cache of public rows of the same kind, from the same backbone, to"
    " learn from as well. The private head labels them, and a second head"
    " learns from these labels; 2 % of the budget decides which of the two is"
    " kept. Labels in this cache are not read (default: no public rows).",
  ).default(None)
  delta: float = DELTA.within(PRIVACY_GROUP).required()
  ledger: Path | None = LEDGER.within(PRIVACY_GROUP).default(None)
  weak_privacy: bool = WEAK_PRIVACY.within(PRIVACY_GROUP).off()
  noise_seed: int | None = NOISE_SEED.within(PRIVACY_GROUP).default(None)
  start: Path | None = Flag(
    parse=parse_place,
    form="FILE.npz",
    group=HEAD_GROUP,
    help="Public vectors to start from, an array for each class name (default:"
    " start from zero).",
  ).default(None)
  balanced: bool = BALANCED.within(HEAD_GROUP).off()
  out: Path = Flag(
    parse=parse_place,
    form="DIR",
    group=RUN_GROUP,
    help="Folder to write, on a disk, gs:// or s3://; it must not exist.",
  ).required()
  dry_run: bool = DRY_RUN.within(RUN_GROUP).off()
  hosts: str | None = Flag(
    form="auto|INDEX/COUNT@HOST:PORT",
    group=RUN_GROUP,
    help="Train on several hosts, each started with this flag and its own"
    " INDEX (default: one host).",
  ).default(None)

  @property
  def is_one_of_hosts(self) -> bool:
    return self.hosts is not None
