"""Accuracies of heads on a test set: exact, or noisy where it is private."""

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.linear_dp.accounting import (
  check_budget,
  check_delta,
  mu_squared,
  printable,
)
from oneshot_dp.linear_dp.evaluate import (
  Accuracy,
  evaluate_heads,
  private_accuracies,
)
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Data, Rows, no_core_dumps, rows_of
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.ledger.charges import Bill, Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.roles import Cast, check_roles, check_same_kind

if TYPE_CHECKING:
  from oneshot_dp.pipeline.commands.evaluate import Flags

Scores = tuple[Sequence[Accuracy], dict[str, Any]]
"""Accuracies, one per head, and what is to be said of them, as JSON."""


def data_of(cache: FeatureCache, hosts: Hosts = ALONE) -> Data:
  """A cache's rows, as sums read them."""
  info = cache.info
  shards = hosts.own_shards(info.num_shards, info.has_units)
  return Data(
    blocks=lambda: cache.blocks(shards),
    n=cache.n,
    feature_dim=info.feature_dim,
    num_classes=info.num_classes,
    unit=info.unit,
    hosts=hosts,
    name=cache.name,
  )


def public_scores(heads: Sequence[LinearHead], cache: FeatureCache) -> Scores:
  """Exact accuracies, on labels that are public."""
  found = evaluate_heads(heads, cache.blocks())
  counts = {"num_examples": found[0].num_examples}
  counts |= {"class_rows": found[0].class_rows}
  said = {"labels": "public", **_of(cache), **counts}
  return found, said


def bill_of_scores(
  cast: Cast, epsilon: float, delta: float, source: NoiseSource
) -> Bill:
  """What noisy accuracies of all heads cost the test set."""
  charge = Charge(
    what=f"accuracies at epsilon {printable(epsilon)}",
    mu2=Fraction(mu_squared(epsilon, delta)) if source.is_private else None,
    unit=cast.cache.info.unit,
    delta=delta,
  )
  dataset = cast.cache.info.dataset
  return Bill(dataset=dataset, charges=(charge,), keys=cast.keys)


def private_scores(
  heads: Sequence[LinearHead],
  cache: FeatureCache,
  rows: Rows,
  epsilon: float,
  delta: float,
  source: NoiseSource,
) -> Scores:
  """Noisy top-1 accuracies on private labels, charged before.

  Formal guarantees: all together are (ε, δ)-DP; see `private_accuracies`.
  """
  buys = mu_squared(epsilon, delta)
  sums = PrivateSums(source, buys)
  counted = not cache.part.is_whole
  found = private_accuracies(sums, rows, heads, buys, counted=counted)
  n, sigma = found[0].num_examples, sums.releases[-1].noise_multiplier
  said = {
    "labels": "private",
    **_of(cache),
    "num_examples": n,
    "privacy_unit": cache.info.unit,
    "private": source.is_private,
    "epsilon": epsilon,
    "delta": delta,
    "noise_source": source.description,
    "accuracy_sd": float(sigma) * math.sqrt(len(heads)) / n,
  }
  return found, said


def _of(cache: FeatureCache) -> dict[str, Any]:
  info, part = cache.info, str(cache.part)
  return {"dataset": info.dataset, "split": info.split, "rows": part}


def score_head(asked: "Flags") -> tuple[Scores, Sequence[str]]:
  """What `evaluate` asks for, and the names of the classes.

  Formal guarantees: labels that are private, by --private-eval or because the
  ledger holds their rows, leave as noisy counts, charged before, or not at all.

  Raises:
    InputError: another backbone or other classes; rows that the ledger holds as
      private, and no --private-eval; or the charge would break the cap.
  """
  no_core_dumps()
  head, private_eval, delta = asked.head, asked.private_eval, asked.delta
  saved, test = read_head(head), open_cache(asked.cache, Part.parse(asked.rows))
  book, source = Ledger(asked.ledger), NoiseSource(asked.noise_seed)
  cast = Cast(test, "private" if private_eval else "public", "--cache")
  kind = saved.stated["backbone_fingerprint"], saved.stated["class_names"]
  check_same_kind(head, kind, cast)
  data = rows_of(data_of(test), each=True)
  data.read()
  if private_eval is None:
    if delta is not None or asked.noise_seed is not None:
      raise InputError("--delta and --noise-seed are for --private-eval only.")
    notes = check_roles([cast], book, allow_duplicates=asked.allow_duplicates)
    if saved.stated["weights_sha256"] not in book.heads():
      notes.append(
        f"note: {book.path} does not know this head, so whether it was trained"
        f" on rows of {test.name} was not checked"
      )
    print(*notes, sep="\n", end="\n" * bool(notes), file=sys.stderr)
    return public_scores([saved.head], test), test.info.class_names
  if delta is None:
    raise InputError("--private-eval needs --delta, too.")
  insisted, flag = asked.weak_privacy, "--private-eval"
  check_budget(private_eval, delta, insisted=insisted, flag=flag)
  check_delta(delta, test.n, insisted=asked.weak_privacy)
  bill = bill_of_scores(cast, private_eval, delta, source)
  book.check(bill)
  what = {"head": saved.stated["weights_sha256"], "rows": test.private_digest}
  what |= {"budget": [private_eval, delta], "noise_seed": asked.noise_seed}
  ids = book.charge([bill], head.resolve() / "evaluation", what)
  budget = private_eval, delta, source
  scores = private_scores([saved.head], test, data, *budget)
  book.deliver(ids, {})  # before anybody sees it: it is shown once
  return scores, test.info.class_names
