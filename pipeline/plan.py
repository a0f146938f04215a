"""What `train` and `sweep` ask for, opened, checked and priced; no charge yet.

All that can fail is tried here: numbers, what is named, roles, rows, memory,
the cap. What a plan says of itself follows from public facts.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError, check_positive
from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.linear_dp.accounting import (
  added_up,
  check_budget,
  check_delta,
  epsilon_of,
  mu_squared,
  printable,
)
from oneshot_dp.linear_dp.evaluate import evaluation_rows
from oneshot_dp.linear_dp.hosts import Hosts
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.train import (
  Before,
  check_plan,
  cost,
  memory_needed,
  rows_for,
)
from oneshot_dp.pipeline.charges import Bill, Charge
from oneshot_dp.pipeline.head_folder import SavedHead
from oneshot_dp.pipeline.ledger import Ledger
from oneshot_dp.pipeline.public_start import read_start
from oneshot_dp.pipeline.results import NOT_PRIVATE
from oneshot_dp.pipeline.roles import Cast, check_roles
from oneshot_dp.pipeline.scores import bill_of_scores, check_scorable, data_of
from oneshot_dp.pipeline.verify import earlier_head

_FEW_ROWS = 3.0
"""Rows of a class, in units of σ, below which a head is next to chance."""
_BESIDES = 1 << 20
"""Bytes of a receipt, or of a table and pictures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """The flags of `train` (`heads` and `epsilons` are one each) or `sweep`."""

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
  from_: Path | None = None
  start: Path | None = None
  balanced: bool = False
  ledger: Path | None = None
  weak_privacy: bool = False
  noise_seed: int | None = None
  hosts: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
  """A request of which all is there and fits.

  Attributes:
    casts: the private cache, and the test cache if there is one.
    saved, before: what `--from` names.
    rows: as each head sees them, in memory or to be read again.
    test_rows: of a private evaluation.
    jobs: what is trained, each with a charge of its own: a head and a draw, or
      None for the baseline.
    mu2: μ² that each draw buys; all its epsilons together.
    epsilon: of all private heads of the run together, rounded up.
    bills: what it costs, of the training rows first.
  """

  asked: Request
  casts: Sequence[Cast]
  ledger: Ledger
  source: NoiseSource
  options: Mapping[HeadName, HeadOptions]
  saved: SavedHead | None
  before: Before | None
  rows: Mapping[HeadName, Rows]
  test_rows: Rows | None
  jobs: Sequence[tuple[HeadName, int | None]]
  mu2: Fraction
  epsilon: float
  bills: Sequence[Bill]

  @property
  def train(self) -> FeatureCache:
    return self.casts[0].cache

  @property
  def room(self) -> int:
    """Bytes on the disk that the run needs, at most."""
    info = self.train.info
    d, k = info.feature_dim, info.num_classes
    names = 12 * sum(len(name.encode()) for name in info.class_names)
    square = 8 * d * d if "auto" in self.asked.heads else 0
    head = 24 * (d + 1) * k + square + names + _BESIDES
    return (len(self.jobs) * len(self.asked.epsilons) + 1) * head

  def settings(self) -> dict[str, Any]:
    """What decides the results, all public; JSON."""
    names = "heads", "epsilons", "delta", "num_draws", "baseline"
    asked = dataclasses.asdict(self.asked)
    return {
      **{name: asked[name] for name in (*names, "private_eval", "noise_seed")},
      "options": {head: o.as_json() for head, o in self.options.items()},
      "from": self.saved and self.saved.stated["weights_sha256"],
      "caches": [
        {**cast.cache.info.public(), "rows": str(cast.cache.part)}
        for cast in self.casts
      ],
    }

  def identity(self) -> dict[str, Any]:
    """The same with digests of the rows, for the ledger's eyes: PRIVATE."""
    digests = [cast.cache.private_digest for cast in self.casts]
    return {**self.settings(), "private_digests": digests}


def make_plan(asked: Request, hosts: Hosts) -> Plan:
  """Opens and checks all that a request names; says what it will do and cost.

  Raises:
    InputError: the first thing that does not do; nothing was charged.
  """
  cost(asked.epsilons, asked.delta)
  private_eval = [] if asked.private_eval is None else [asked.private_eval]
  for epsilon in (*asked.epsilons, *private_eval):
    check_budget(epsilon, asked.delta, insisted=asked.weak_privacy)
  check_positive("--num-draws", asked.num_draws)
  if not asked.heads or len({*asked.heads}) < len(asked.heads):
    raise InputError(f"--head {' '.join(asked.heads)}: give each once.")
  train = open_cache(asked.cache, Part.parse(asked.rows))
  test = None
  if asked.eval_cache is not None:
    test = open_cache(asked.eval_cache, Part.parse(asked.eval_rows))
  info, ledger = train.info, Ledger(asked.ledger)
  check_delta(asked.delta, train.n, insisted=asked.weak_privacy)
  saved = start = None
  if asked.from_ is not None:
    saved = earlier_head(asked.from_, ledger, info, train.part)
    (then, *_) = ledger.paid(saved.stated["charge"])
    if train.private_digest not in then.asked.get("private_digests", ()):
      raise InputError(
        f"{asked.from_} cannot be gone on from: it was trained on other rows"
        f" than {train.name} has; give that cache."
      )
    if (delta := saved.stated["delta"]) != asked.delta:
      raise InputError(
        f"--delta {asked.delta:g} is not the {delta:g} of {asked.from_}: give"
        " the same."
      )
  if asked.start is not None:
    start = read_start(asked.start, info, ledger)
  given = HeadOptions(balanced=asked.balanced, start=start)
  alone = (
    len(asked.heads) == 1
  )  # beside auto, which has settings, lamb has none
  options = {
    head: given if head == "auto" or alone else HeadOptions()
    for head in asked.heads
  }
  before = saved and saved.before()
  sizes = {"feature_dim": info.feature_dim, "num_classes": info.num_classes}
  for head in asked.heads:
    check_plan(
      head=head, n=train.n, options=options[head], before=before, **sizes
    )
  _check_memory(asked, train)
  casts = [Cast.of(train, "private", "--cache")]
  if test is not None:
    role = "private" if private_eval else "public"
    casts.append(Cast.of(test, role, "--eval-cache"))
    check_scorable(test)
  notes = check_roles(casts, ledger, allow_duplicates=asked.allow_duplicates)
  source, data = NoiseSource(asked.noise_seed), data_of(train, hosts)
  had = before.mu_squared if before else 0.0
  mu2 = Fraction(cost(asked.epsilons, asked.delta, had))
  draws = [(head, i) for head in asked.heads for i in range(asked.num_draws)]
  jobs = [*draws, *((h, None) for h in asked.heads if asked.baseline)]
  at = ", ".join(map(printable, sorted(asked.epsilons)))
  charges = tuple(
    Charge(
      what=f"{h} without noise" if i is None else f"{h} at epsilon {at}",
      mu2=None if i is None or not source.is_private else mu2,
      unit=info.unit,
      delta=asked.delta,
      came_from=saved.stated["charge"] if saved else None,
    )
    for h, i in jobs
  )
  bills = [Bill(dataset=info.dataset, charges=charges, keys=casts[0].keys)]
  test_rows = None
  if test is not None and private_eval:
    check_delta(asked.delta, test.n, insisted=asked.weak_privacy)
    test_rows = evaluation_rows(data_of(test, hosts))
    budget = private_eval[0], asked.delta
    bills.append(bill_of_scores(casts[1], *budget, source))
  plan = Plan(
    asked=asked,
    casts=casts,
    ledger=ledger,
    source=source,
    options=options,
    saved=saved,
    before=before,
    rows={head: rows_for(data, head) for head in asked.heads},
    test_rows=test_rows,
    jobs=jobs,
    mu2=mu2,
    epsilon=epsilon_of(
      added_up([had, *(float(mu2) for _ in draws)]), asked.delta
    ),
    bills=bills,
  )
  if hosts.is_first:
    ledger.check(*bills)
    print(*notes, *_said(plan), sep="\n", file=sys.stderr)
  return plan


def _said(plan: Plan) -> list[str]:
  """What to beware of, and what will be done and cost, from public facts."""
  asked, train, said = plan.asked, plan.train, []
  info = train.info
  if not info.num_classes_is_public:
    said.append(
      "warning: the number of classes was read off the private labels; the"
      " guarantee holds only if it is public anyway: import with --num-classes"
    )
  sigma = mu_squared(max(asked.epsilons), asked.delta) ** -0.5
  if (of_class := train.n / info.num_classes) < _FEW_ROWS * sigma:
    said.append(
      f"warning: about {of_class:.3g} rows of each class, and noise as large as"
      f" {sigma:.3g} of them: heads will be little better than chance; give"
      " more rows, fewer classes or a larger epsilon"
    )
  costs = f"the noise is of a seed, {NOT_PRIVATE}"
  if plan.source.is_private:
    costs = f"{info.dataset!r} pays epsilon {printable(plan.epsilon)} in all"
  if asked.baseline:
    costs += f", and is shown without noise, {NOT_PRIVATE}"
  if asked.private_eval is not None:
    costs += f"; accuracies cost {plan.bills[-1].dataset!r}"
    costs += f" {printable(asked.private_eval)}"
  epsilons = ", ".join(map(printable, sorted(asked.epsilons)))
  draws = f", {asked.num_draws} draws" if asked.num_draws > 1 else ""
  said.append(
    f"{' and '.join(asked.heads)} at epsilon {epsilons}{draws}, delta"
    f" {printable(asked.delta)}, from {train.n:,} rows of"
    f" {info.feature_dim:,} numbers in {info.num_classes:,} classes: {costs},"
    f" by {plan.ledger.path}"
  )
  return said


def _check_memory(asked: Request, train: FeatureCache) -> None:
  """InputError where the run needs more memory than this machine has."""
  d, k, n = train.info.feature_dim, train.info.num_classes, train.n
  heads = len(asked.heads) * len(asked.epsilons) * asked.num_draws
  needs = heads * 4 * (d + 1) * k + max(
    memory_needed(head, n, d, k, train.info.unit) for head in asked.heads
  )
  has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  if needs > has:
    raise InputError(
      f"heads of {d:,} x {k:,} from {n:,} rows take about"
      f" {needs / 2**30:.3g} GB of memory, of {has / 2**30:.3g} GB that there"
      " are: ask for fewer at once, --head lamb, or a smaller embedding."
    )
