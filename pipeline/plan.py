"""What `train` and `sweep` ask for, opened, checked and priced; no charge yet.

All that can fail is tried here: numbers, what is named, roles, rows, memory,
the cap. What a plan says of itself follows from public facts.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.linear_dp.accounting import (
  added_up,
  check_delta,
  epsilon_of,
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
  rows_for,
)
from oneshot_dp.pipeline.charges import Bill, Charge
from oneshot_dp.pipeline.head_folder import SavedHead, head_bytes
from oneshot_dp.pipeline.ledger import Ledger
from oneshot_dp.pipeline.public_start import read_start
from oneshot_dp.pipeline.request import Request, check_memory, warnings_of
from oneshot_dp.pipeline.results import NOT_PRIVATE
from oneshot_dp.pipeline.roles import Cast, check_roles
from oneshot_dp.pipeline.scores import check_scorable, data_of, private_charge
from oneshot_dp.pipeline.verify import earlier_head

_BESIDES = 1 << 20
"""Bytes of tables, pictures and the page."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
  """A request of which all is there and fits.

  Attributes:
    casts: the private cache, and the test cache if there is one.
    saved, before: what `--from` names.
    rows: as each head sees them, in memory or to be read again.
    test_rows: of a private evaluation.
    notes: what is to be said before the charge.
  """

  asked: Request
  casts: Sequence[Cast]
  ledger: Ledger
  source: NoiseSource
  options: HeadOptions
  saved: SavedHead | None
  before: Before | None
  rows: Mapping[HeadName, Rows]
  test_rows: Rows | None
  notes: Sequence[str]

  @property
  def train(self) -> FeatureCache:
    return self.casts[0].cache

  @property
  def test(self) -> FeatureCache | None:
    return self.casts[1].cache if len(self.casts) > 1 else None

  @property
  def jobs(self) -> list[tuple[HeadName, int | None]]:
    """What is trained, each with a charge: head and draw, None the baseline."""
    draws: list[int | None] = [*range(self.asked.num_draws)]
    heads = [(head, draw) for head in self.asked.heads for draw in draws]
    return heads + [(h, None) for h in self.asked.heads if self.asked.baseline]

  def options_of(self, head: HeadName) -> HeadOptions:
    """`auto` has settings; heads of one step beside it have none."""
    return self.options if head == "auto" else HeadOptions()

  @functools.cached_property
  def mu2(self) -> Fraction:
    """μ² that each draw of each head buys."""
    already = self.before.mu_squared if self.before else 0.0
    return Fraction(cost(self.asked.epsilons, self.asked.delta, already))

  @property
  def composed(self) -> float:
    """ε of all private heads of the run together, rounded up."""
    heads = len(self.asked.heads) * self.asked.num_draws
    costs = [float(self.mu2)] * heads
    costs += [self.before.mu_squared] if self.before else []
    return epsilon_of(added_up(costs), self.asked.delta)

  @functools.cached_property
  def bills(self) -> list[Bill]:
    """What it costs: the training rows, and those of a private test set."""
    asked, info = self.asked, self.train.info
    at = ", ".join(map(printable, sorted(asked.epsilons)))
    charges = []
    for head, draw in self.jobs:
      what = f"{head} at epsilon {at}" + (f", draw {draw}" if draw else "")
      private = draw is not None and self.source.is_private
      charges.append(
        Charge(
          what=f"{head} without noise" if draw is None else what,
          mu2=self.mu2 if private else None,
          unit=info.unit,
          delta=asked.delta,
          came_from=self.saved.stated["charge"] if self.saved else None,
        )
      )
    bills = [
      Bill(
        dataset=info.dataset, charges=tuple(charges), keys=self.casts[0].keys
      )
    ]
    if self.test is not None and asked.private_eval is not None:
      charge = private_charge(
        self.test, asked.private_eval, asked.delta, self.source
      )
      dataset, keys = self.test.info.dataset, self.casts[1].keys
      bills.append(Bill(dataset=dataset, charges=(charge,), keys=keys))
    return bills

  @property
  def room(self) -> int:
    """Bytes on the disk that the run may need."""
    info, asked = self.train.info, self.asked
    d, k = info.feature_dim, info.num_classes
    state = 16 * d * k + 8 * d * d * ("auto" in asked.heads) + _BESIDES
    heads = len(self.jobs) * len(asked.epsilons)
    return heads * head_bytes(info, state) + _BESIDES

  def settings(self) -> dict[str, Any]:
    """What was asked for and decides the results, all public; JSON."""
    asked = self.asked
    return {
      "heads": list(asked.heads),
      "epsilons": sorted(asked.epsilons),
      "delta": asked.delta,
      "num_draws": asked.num_draws,
      "baseline": asked.baseline,
      "private_eval": asked.private_eval,
      "options": self.options.as_json(),
      "noise_source": self.source.description,
      "noise_seed": asked.noise_seed,
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

  def say(self) -> None:
    """One line of what it will do and cost, after what to beware of."""
    asked, info = self.asked, self.train.info
    for note in self.notes:
      print(note, file=sys.stderr)
    epsilons = ", ".join(map(printable, sorted(asked.epsilons)))
    draws = f", {asked.num_draws} draws" if asked.num_draws > 1 else ""
    costs = f"the noise is of a seed, {NOT_PRIVATE}"
    if self.source.is_private:
      costs = f"{info.dataset!r} pays epsilon {printable(self.composed)} in all"
    if asked.baseline:
      costs += f", and is shown without noise, {NOT_PRIVATE}"
    if asked.private_eval is not None and self.test:
      of = self.test.info.dataset
      costs += f"; accuracies cost {of!r} {printable(asked.private_eval)}"
    print(
      f"{' and '.join(asked.heads)} at epsilon {epsilons}{draws}, delta"
      f" {printable(asked.delta)}, from {self.train.n:,} rows of"
      f" {info.feature_dim:,} numbers in {info.num_classes:,} classes: {costs},"
      f" by {self.ledger.path}",
      file=sys.stderr,
    )


def make_plan(asked: Request, hosts: Hosts) -> Plan:
  """Opens and checks all that a request names.

  Raises:
    InputError: the first thing that does not do; nothing was charged.
  """
  asked.check()
  train = open_cache(asked.cache, Part.parse(asked.rows))
  test = None
  if asked.eval_cache is not None:
    test = open_cache(asked.eval_cache, Part.parse(asked.eval_rows))
  info, test_pays = train.info, test is not None and asked.private_eval
  for cache in (train, test) if test_pays else (train,):
    check_delta(asked.delta, cache.n, insisted=asked.weak_privacy)
  ledger, saved, start = Ledger(asked.ledger), None, None
  if asked.before is not None:
    saved = earlier_head(asked.before, ledger, info, train.part)
    if saved.stated["delta"] != asked.delta:
      raise InputError(
        f"--delta {asked.delta:g} is not the {saved.stated['delta']:g} of"
        f" {asked.before}: give the same."
      )
  if asked.start is not None:
    start = read_start(asked.start, info, ledger)
  options = HeadOptions(balanced=asked.balanced, start=start)
  before = saved and saved.before()
  for head in asked.heads:
    check_plan(
      head=head,
      n=train.n,
      feature_dim=info.feature_dim,
      num_classes=info.num_classes,
      options=options if head == "auto" else HeadOptions(),
      before=before,
    )
  check_memory(asked, train)
  casts = [Cast.of(train, "private", "--cache")]
  if test is not None:
    role = "private" if test_pays else "public"
    casts.append(Cast.of(test, role, "--eval-cache"))
    check_scorable(test)
  notes = check_roles(casts, ledger, allow_duplicates=asked.allow_duplicates)
  data = data_of(train, hosts)
  plan = Plan(
    asked=asked,
    casts=casts,
    ledger=ledger,
    source=NoiseSource(asked.noise_seed),
    options=options,
    saved=saved,
    before=before,
    rows={head: rows_for(data, head) for head in asked.heads},
    test_rows=evaluation_rows(data_of(test, hosts)) if test_pays else None,
    notes=[*notes, *warnings_of(asked, train)],
  )
  if hosts.is_first:
    ledger.check(*plan.bills)
  return plan
