"""Accuracies of heads on a test set: exact, or noisy where it is private."""

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import (
  format_rounded_up,
  mu_squared_from_epsilon,
)
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.evaluate import (
  Accuracy,
  evaluate_heads,
  private_accuracies,
)
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import PrivateDataset, rows_of
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.ledger.entries import ChargeRequest, LedgerEntry
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.cache_roles import (
  CacheRole,
  check_roles,
  check_same_kind,
)

if TYPE_CHECKING:
  from oneshot_dp.pipeline.commands import evaluate, sweep

Scores = tuple[Sequence[Accuracy], dict[str, Any]]
"""Accuracies, one per head, and what is to be said of them, as JSON."""


def data_of(cache: FeatureCache, hosts: Hosts = ALONE) -> PrivateDataset:
  """A cache's rows, as sums read them."""
  info = cache.info
  shards = hosts.own_shards(info.num_shards, info.has_units)
  return PrivateDataset(
    blocks=lambda: cache.blocks(shards),
    n=cache.n,
    feature_dim=info.feature_dim,
    num_classes=info.num_classes,
    unit=info.unit,
    hosts=hosts,
    name=cache.name,
  )


class EvalRows:
  """Rows that heads are scored on: exactly, or for a budget by noisy counts.

  Attributes:
    cast: their cache, in its role.
    budget: (ε, δ) of all counts together; None where labels are public.

  InputError: the budget is no guarantee, or a row cannot be scored.
  """

  def __init__(
    self,
    cache: FeatureCache,
    flag: str,
    asked: "sweep.Flags | evaluate.Flags",
    source: NoiseSource,
    hosts: Hosts = ALONE,
  ):
    epsilon, delta = asked.private_eval, asked.delta
    self.source, self.budget = source, None
    self.cast = CacheRole(
      cache, "public" if epsilon is None else "private", flag
    )
    self._rows = rows_of(data_of(cache, hosts), per_row=True)
    if epsilon is not None:
      if delta is None:
        raise InputError("--private-eval needs --delta, too.")
      insisted, flag = asked.weak_privacy, "--private-eval"
      accounting.check_budget(
        epsilon, delta, allow_weak_privacy=insisted, flag=flag
      )
      accounting.check_delta(delta, cache.n, allow_weak_privacy=insisted)
      self.budget = epsilon, delta
    self._rows.validate()

  def bills(self) -> list[ChargeRequest]:
    """What the counts cost, of all heads together."""
    if self.budget is None:
      return []
    info = self.cast.cache.info
    paid = str(Fraction(mu_squared_from_epsilon(*self.budget)))
    charge = LedgerEntry(
      kind="charge",
      description=f"accuracies at epsilon {format_rounded_up(self.budget[0])}",
      mu_squared=paid if self.source.is_private else None,
      unit=info.unit,
      delta=self.budget[1],
    )
    keys = self.cast.keys
    return [ChargeRequest(dataset=info.dataset, charges=(charge,), keys=keys)]

  def scores(self, heads: Sequence[LinearHead]) -> Scores:
    """Scores them; noisy counts are to be charged before.

    Formal guarantees: all counts are (ε, δ)-DP; see `private_accuracies`.
    """
    info, part = self.cast.cache.info, self.cast.cache.part
    said: dict[str, Any] = {"labels": self.cast.role, "dataset": info.dataset}
    said |= {"split": info.split, "rows": str(part)}
    if self.budget is None:
      found = evaluate_heads(heads, self.cast.cache.blocks())
      n, counts = found[0].num_examples, found[0].class_rows
      return found, said | {"num_examples": n, "class_rows": counts}
    buys = mu_squared_from_epsilon(*self.budget)
    sums, counted = PrivateSums(self.source, buys), not part.is_whole
    found = private_accuracies(
      sums, self._rows, heads, mu_squared=buys, count_units=counted
    )
    n, sigma = found[0].num_examples, sums.releases[-1].noise_multiplier
    return found, said | {
      "num_examples": n,
      "privacy_unit": info.unit,
      "private": self.source.is_private,
      "epsilon": self.budget[0],
      "delta": self.budget[1],
      "noise_source": self.source.description,
      "accuracy_sd": float(sigma) * math.sqrt(len(heads)) / n,
    }


def score_head(asked: "evaluate.Flags") -> tuple[Scores, Sequence[str]]:
  """What `evaluate` asks for, and the names of the classes.

  Formal guarantees: labels that are private, by --private-eval or because the
  ledger holds their rows, leave as noisy counts, charged before, or not at all.

  Raises:
    InputError: another backbone or other classes; rows that the ledger holds as
      private, and no --private-eval; or the charge would break the cap.
  """
  saved, book = read_head(asked.head), Ledger(asked.ledger)
  cache = open_cache(asked.cache, Part.parse(asked.rows))
  test = EvalRows(cache, "--cache", asked, NoiseSource(asked.noise_seed))
  stated, heads = saved.receipt["stated"], [saved.trained.head]
  kind = stated["backbone_fingerprint"], stated["class_names"]
  check_same_kind(asked.head, kind, test.cast)
  if test.budget is None:
    if asked.delta is not None or asked.noise_seed is not None:
      raise InputError("--delta and --noise-seed are for --private-eval only.")
    insisted = asked.allow_duplicates
    notes = check_roles([test.cast], book, allow_duplicates=insisted)
    if stated["weights_sha256"] not in book.heads():
      notes.append(
        f"note: {book.path} does not know this head, so whether it was trained"
        f" on rows of {cache.name} was not checked"
      )
    print(*notes, sep="\n", end="\n" * bool(notes), file=sys.stderr)
    return test.scores(heads), cache.info.class_names
  what = {"head": stated["weights_sha256"], "rows": cache.private_digest}
  what |= {"budget": [*test.budget], "noise_seed": asked.noise_seed}
  ids = book.charge(test.bills(), asked.head.resolve() / "evaluation", what)
  scores = test.scores(heads)
  book.deliver(ids, {})  # before anybody sees it: it is shown once
  return scores, cache.info.class_names
