"""What `train` and `sweep` ask for, opened, checked and priced; no charge yet.

All that can fail is tried here: numbers, what is named, roles, rows, memory,
the cap. What a plan says of itself follows from public facts.
"""

import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from oneshot_dp.configs.errors import InputError, check_positive
from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.linear_dp.distributed.hosts import Hosts
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.memory import memory_needed
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.train import check_plan, cost
from oneshot_dp.pipeline.heads.verify import earlier_head
from oneshot_dp.pipeline.ledger.entries import ChargeRequest, LedgerEntry
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.report.results import NOT_PRIVATE
from oneshot_dp.pipeline.runs.cache_roles import CacheRole, check_roles
from oneshot_dp.pipeline.runs.evaluation import EvalRows, data_of
from oneshot_dp.pipeline.vector_files import read_start

if TYPE_CHECKING:
  from oneshot_dp.pipeline.commands import sweep, train

_FEW_ROWS = 3.0  # of a class, in units of σ: a head is next to chance below
_BESIDES = 1 << 20  # bytes of a receipt, or of a table and pictures


class Plan:
  """A request of which all is there and fits, and what it will cost.

  Attributes:
    jobs: what is trained (a head and a draw, or None for the baseline), and
      what is charged for each.
    parent_stated: what is stated of the head that --from names; else empty.
    mu2: μ² that each draw buys, all its epsilons together.
    epsilon: of all private heads of the run together, rounded up.
    bills: what it costs, of the training rows first.
    room: bytes on the disk that the run needs, at most.
    identity: `settings`, and digests of the rows, for the ledger: PRIVATE.

  InputError: the first thing that does not do; nothing was charged.
  """

  def __init__(self, asked: "train.Flags | sweep.Flags", hosts: Hosts):
    self.asked, delta, insisted = asked, asked.delta, asked.weak_privacy
    how: dict[str, Any] = {"allow_weak_privacy": insisted, "flag": "--epsilon"}
    for epsilon in asked.epsilons:
      accounting.check_budget(epsilon, delta, **how)
    check_positive("--num-draws", asked.num_draws)
    if not asked.heads or len({*asked.heads}) < len(asked.heads):
      raise InputError(f"--head {' '.join(asked.heads)}: give each once.")
    self.ledger = Ledger(asked.ledger)
    self.source = NoiseSource(asked.noise_seed)
    self.train = open_cache(asked.cache, Part.parse(asked.rows))
    info, n = self.train.info, self.train.n
    accounting.check_delta(delta, n, allow_weak_privacy=insisted)
    self.casts, self.test = [CacheRole(self.train, "private", "--cache")], None
    if asked.eval_cache is not None:
      cache = open_cache(asked.eval_cache, Part.parse(asked.eval_rows))
      self.test = EvalRows(cache, "--eval-cache", asked, self.source, hosts)
      self.casts.append(self.test.cast)
    self.before, self.parent_stated, had = None, {}, 0.0
    if asked.from_ is not None:
      saved = earlier_head(asked.from_, self.ledger, self.train, delta)
      self.before, self.parent_stated = saved.trained, saved.receipt["stated"]
      had = saved.trained.mu_squared or 0.0
    d, k, data = info.feature_dim, info.num_classes, data_of(self.train, hosts)
    start = read_start(asked.start, info) if asked.start else None
    given = HeadOptions(balanced=asked.balanced, start=start)
    self.options: dict[HeadName, HeadOptions] = {}
    for head in asked.heads:  # beside auto, which has some, lamb has none
      alone = head == "auto" or len(asked.heads) == 1
      self.options[head] = given if alone else HeadOptions()
      how = {"options": self.options[head], "parent_head": self.before}
      check_plan(head=head, n=n, feature_dim=d, num_classes=k, **how)
    self.mu2, draws = cost(asked.epsilons, delta, had), range(asked.num_draws)
    count = len(asked.heads) * len(asked.epsilons) * len(draws)
    needs = 4 * (d + 1) * k * count
    shard = min(info.shard_rows, info.source_num_examples)
    needs += max(
      memory_needed(
        head,
        n=n,
        feature_dim=d,
        num_classes=k,
        privacy_unit=info.unit,
        shard_rows=shard,
      )
      for head in asked.heads
    )
    fix = "ask for fewer at once, --head lamb, or a smaller embedding"
    check_memory(f"heads of {d:,} x {k:,} from {n:,} rows", needs, fix)
    self.rows = {head: HEADS[head].prepare_rows(data) for head in asked.heads}
    for rows in self.rows.values():
      rows.validate()
    insisted = asked.allow_duplicates
    self.notes = check_roles(self.casts, self.ledger, allow_duplicates=insisted)
    self.notes += {rows.note for rows in self.rows.values()} - {""}
    at = ", ".join(map(format_rounded_up, sorted(asked.epsilons)))
    paid = str(self.mu2) if self.source.is_private else None
    same: dict[str, Any] = {"kind": "charge", "unit": info.unit, "delta": delta}
    same["parent_charge_id"] = self.parent_stated.get("charge")
    self.jobs: dict[tuple[HeadName, int | None], LedgerEntry] = {
      (head, draw): LedgerEntry(
        description=f"{head} at epsilon {at}", mu_squared=paid, **same
      )
      for head in asked.heads
      for draw in draws
    }
    every = Fraction(had) + len(self.jobs) * self.mu2
    self.epsilon = accounting.epsilon_of(
      accounting.sum_mu_squared([every]), delta
    )
    for head in asked.heads if asked.baseline else ():
      self.jobs[head, None] = LedgerEntry(
        description=f"{head} without noise", **same
      )
    of = {"dataset": info.dataset, "keys": self.casts[0].keys}
    self.bills = [ChargeRequest(charges=tuple(self.jobs.values()), **of)]
    self.bills += self.test.bills() if self.test else []
    names = 12 * sum(len(name.encode()) for name in info.class_names)
    square = 8 * d * d if "auto" in asked.heads else 0
    each = 24 * (d + 1) * k + square + names + _BESIDES
    self.room = (len(self.jobs) * len(asked.epsilons) + 1) * each
    digests = [cast.cache.private_digest for cast in self.casts]
    self.identity = {**self.settings(), "private_digests": digests}

  def settings(self) -> dict[str, Any]:
    """What decides the results, all public; JSON."""
    names = "heads epsilons delta num_draws baseline private_eval noise_seed"
    return {
      **{name: getattr(self.asked, name) for name in names.split()},
      "options": {head: o.as_json() for head, o in self.options.items()},
      "noise_source": self.source.description,
      "from": self.parent_stated.get("weights_sha256"),
      "caches": [
        {**cast.cache.info.public(), "rows": str(cast.cache.part)}
        for cast in self.casts
      ],
    }

  def said(self) -> list[str]:
    """What to beware of, and what will be done and cost, from public facts."""
    asked, info, n = self.asked, self.train.info, self.train.n
    said = [*self.notes]
    if info.num_classes_source not in ("class_names", "flag"):
      said.append(
        "warning: the number of classes was read off the private labels; the"
        " guarantee holds only if it is public: import with --num-classes"
      )
    sigma = (
      accounting.mu_squared_from_epsilon(max(asked.epsilons), asked.delta)
      ** -0.5
    )
    if (of_class := n / info.num_classes) < _FEW_ROWS * sigma:
      said.append(
        f"warning: about {of_class:.3g} rows of each class, and noise as large"
        f" as {sigma:.3g} of them: heads will be little better than chance;"
        " give more rows, fewer classes or a larger epsilon"
      )
    costs = f"the noise is of a seed, {NOT_PRIVATE}"
    if self.source.is_private:
      total = format_rounded_up(self.epsilon)
      costs = f"{info.dataset!r} pays epsilon {total} in all"
      costs += f", with what {asked.from_} cost" if asked.from_ else ""
    if asked.baseline:
      costs += f", and is shown without noise, {NOT_PRIVATE}"
    if asked.private_eval is not None and self.source.is_private:
      costs += f"; accuracies cost {self.bills[-1].dataset!r}"
      costs += f" {format_rounded_up(asked.private_eval)}"
    draws = f", {asked.num_draws} draws" * (asked.num_draws > 1)
    at = ", ".join(map(format_rounded_up, asked.epsilons))
    said.append(
      f"{' and '.join(asked.heads)} at epsilon {at}, delta {asked.delta:g}"
      f"{draws}, from {n:,} rows of {info.feature_dim:,} numbers in"
      f" {info.num_classes:,} classes: {costs}, by {self.ledger.path}"
    )
    return said


def check_memory(what: str, needs: int, fix: str) -> None:
  """InputError where it needs more bytes of memory than this machine has."""
  has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  if needs > has:
    raise InputError(
      f"{what} take about {needs / 2**30:.3g} GB of memory, of"
      f" {has / 2**30:.3g} GB that there are: {fix}."
    )
