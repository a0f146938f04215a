"""What `train` and `sweep` ask for, and what public facts say of it."""

import dataclasses
import os
from pathlib import Path

from oneshot_dp.configs.errors import InputError, check_positive
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.linear_dp.accounting import check_budget, mu_squared
from oneshot_dp.linear_dp.train import memory_needed

_FEW_ROWS = 3.0
"""Rows of a class, in units of σ, below which a head is next to chance."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What `train` or `sweep` asks for; a sweep has an `eval_cache`.

  Attributes:
    before: the folder of a head to go on from.
    start: the file or head of a public start.
    hosts: see `Hosts.of`.
  """

  cache: Path
  rows: str = ""
  eval_cache: Path | None = None
  eval_rows: str = ""
  out: Path
  heads: tuple[HeadName, ...]
  epsilons: tuple[float, ...]
  delta: float
  num_draws: int = 1
  baseline: bool = False
  private_eval: float | None = None
  allow_duplicates: bool = False
  before: Path | None = None
  start: Path | None = None
  balanced: bool = False
  ledger: Path | None = None
  weak_privacy: bool = False
  noise_seed: int | None = None
  hosts: str | None = None

  def check(self) -> None:
    """InputError for what can be seen without opening anything."""
    paid = [] if self.private_eval is None else [self.private_eval]
    for epsilon in (*self.epsilons, *paid):
      check_budget(epsilon, self.delta, insisted=self.weak_privacy)
    check_positive("--num-draws", self.num_draws)
    if not self.heads or len({*self.heads}) < len(self.heads):
      raise InputError(f"--head {' '.join(self.heads)}: give each once.")
    if (self.balanced or self.start) and "auto" not in self.heads:
      raise InputError("--balanced and --start are of --head auto alone.")
    begun = self.out.with_name(f".{self.out.name}.unfinished")
    if os.path.lexists(self.out) and not begun.exists():
      raise InputError(f"{self.out} is there already: name another --out.")


def warnings_of(asked: Request, train: FeatureCache) -> list[str]:
  """What to beware of, from public facts."""
  info, said = train.info, []
  if not info.num_classes_is_public:
    said.append(
      "warning: the number of classes was read off the private labels; the"
      " guarantee holds only if it is public anyway: import with --num-classes"
    )
  sigma = mu_squared(max(asked.epsilons), asked.delta) ** -0.5
  of_class = train.n / info.num_classes
  if of_class < _FEW_ROWS * sigma:
    said.append(
      f"warning: about {of_class:.3g} rows of each class, and noise as large as"
      f" {sigma:.3g} of them: heads will be little better than chance; give"
      " more rows, fewer classes or a larger epsilon"
    )
  return said


def check_memory(asked: Request, train: FeatureCache) -> None:
  """InputError where the run needs more memory than this machine has."""
  info = train.info
  d, k = info.feature_dim, info.num_classes
  heads = len(asked.heads) * len(asked.epsilons) * asked.num_draws
  needs = heads * 4 * (d + 1) * k + max(
    memory_needed(head, train.n, d, k, info.unit) for head in asked.heads
  )
  has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  if needs > has:
    raise InputError(
      f"heads of {d:,} x {k:,} from {train.n:,} rows take about"
      f" {needs / 2**30:.3g} GB of memory, of {has / 2**30:.3g} GB that there"
      " are: ask for fewer at once, --head lamb, or a smaller embedding."
    )
