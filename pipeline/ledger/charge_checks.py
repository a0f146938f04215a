"""Checks charges: the names of rows, privacy units and caps."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE
from oneshot_dp.linear_dp import accounting
from oneshot_dp.pipeline.ledger.entries import (
  Cap,
  ChargeRequest,
  Keys,
  LedgerEntry,
  cap_of,
  count_shared,
  describe_remaining,
  spent,
)
from oneshot_dp.pipeline.ledger.store import Transaction, is_default_ledger


def check_requests(
  ledger: Transaction, requests: Sequence[ChargeRequest]
) -> None:
  """Checks all requests of one command, with one another and with the ledger.

  It writes nothing, and is to be called within the transaction that charges.

  Args:
    ledger: all entries at one moment.
    requests: the charges and the keys of the rows of each data set; without
      charges, only the name of the rows is checked.

  Raises:
    InputError: rows that are charged under another name; a head to continue
      from that was not charged here; charges of one data set for two units; or
      charges that break its cap.
  """
  for request in requests:
    _check_rows_have_one_name(ledger, request, requests)
  # All charges of a command for one data set are checked together: each alone
  # may fit under a cap that their sum breaks.
  new_charges: dict[str, list[LedgerEntry]] = {}
  caches: dict[str, str] = {}
  for request in requests:
    if request.charges:
      caches.setdefault(request.dataset, request.cache)
      new_charges.setdefault(request.dataset, []).extend(request.charges)
  for dataset, new in new_charges.items():
    old = ledger.select("charge", dataset)
    _check_parents(dataset, old, new)
    _check_unit(dataset, old, new)
    cap = cap_of(ledger.select("cap", dataset))
    if cap is not None:
      _check_cap(
        dataset, cap, old, new, _budget_command(ledger, caches[dataset])
      )


def check_same_run(
  charge: LedgerEntry, identity: Mapping[str, Any], run: Path
) -> None:
  """Refuses another run into the place of one that is not finished.

  Args:
    charge: a charge of the run that is not finished.
    identity: the identity of the new run, as JSON has it; PRIVATE.
    run: where the results of both go.

  Raises:
    InputError: the two runs differ.
  """
  names = [*charge.identity]
  names += [name for name in identity if name not in charge.identity]
  differing = [
    name for name in names if charge.identity.get(name) != identity.get(name)
  ]
  if differing:
    raise InputError(
      f"a run into {run} was charged ({charge.description}) and not finished,"
      f" and this is another by its {', '.join(differing)}: run the very same"
      " command first, which resumes without a new charge; then this one can be"
      " charged. (`train` and `sweep` may go to another --out instead.)"
    )


class KnownKeys(NamedTuple):
  """How many rows and units a data set was charged for already, at least.

  Attributes:
    rows: rows that any kind of key recognizes.
    units: units, by their numbers.
    images: rows, by their images or by all numbers of their embeddings.
  """

  rows: int
  units: int
  images: int


def shared_with_datasets(
  ledger: Transaction, keys: Keys
) -> dict[str, KnownKeys]:
  """Counts how many of these rows, and units, each data set was charged for.

  The counts are PRIVATE, for the holder of the rows alone.

  Args:
    ledger: all entries at one moment, with their keys.
    keys: of the rows that are looked for.

  Returns:
    Counts by the name of each data set that has at least one row or unit in
    common. A unit's number means something within one data set only.
  """
  # The keys of one data set at a time: a ledger may hold those of many, each
  # with millions of rows.
  shared = {}
  for dataset in dict.fromkeys(row.dataset for row in ledger.select("rows")):
    theirs = {kind: ledger.read_keys(dataset, kind) for kind in keys}
    known = KnownKeys(
      rows=count_shared(keys, theirs),
      units=count_shared(keys, theirs, ["unit"]),
      images=count_shared(keys, theirs, ["image"]),
    )
    if known.rows or known.units:
      shared[dataset] = known
  return shared


def _check_rows_have_one_name(
  ledger: Transaction,
  request: ChargeRequest,
  requests: Sequence[ChargeRequest],
) -> None:
  """Refuses rows that another data set has, in the file or in this command."""
  shared = []
  for name, known in shared_with_datasets(ledger, request.keys).items():
    shared.append((name, known.rows))
  # Two caches of one command may have rows in common as well, before the ledger
  # knows either of them.
  for other in requests:
    shared.append((other.dataset, count_shared(request.keys, other.keys)))
  for name, num_rows in shared:
    if name != request.dataset and num_rows:
      # How many is private, and errors go into logs.
      raise InputError(
        f"some rows of {request.cache} are charged as {name!r} already, and"
        f" this cache calls them {request.dataset!r}: make the cache with"
        f" --name {shlex.quote(name)} (--dataset-name, if it is imported), so"
        " that what is spent on them adds up, or leave these rows out."
      )


def _check_parents(
  dataset: str, old: Sequence[LedgerEntry], new: Sequence[LedgerEntry]
) -> None:
  """Refuses to continue from a head that was not charged here."""
  known = {charge.id for charge in old}
  for charge in new:
    parent = charge.parent_charge_id
    if parent is not None and parent not in known:
      raise InputError(
        f"the head to continue from was not charged here, to {dataset!r}: name"
        " its ledger, or leave --from out."
      )


def _check_unit(
  dataset: str, old: Sequence[LedgerEntry], new: Sequence[LedgerEntry]
) -> None:
  """Refuses charges of one data set for two privacy units."""
  # ε of examples and ε of people do not add up: a sum of both would mean
  # neither. What was released cannot be taken back, so there are only two ways
  # out that keep a promise: go on as before, or with images of others.
  units = list(dict.fromkeys(charge.unit for charge in (*old, *new)))
  if len(units) == 1:
    return
  first, other = units[:2]
  as_before = "of the same units as before"
  if first == EXAMPLE:
    as_before = "without units"
  raise InputError(
    f"{dataset!r} is charged per {first}, and this would be charged per"
    f" {other}: the two do not add up, and what was released before cannot be"
    f" changed. Continue per {first}, with a cache {as_before}; or start again"
    " under another name, with images of which nothing was released."
  )


def _check_cap(
  dataset: str,
  cap: Cap,
  old: Sequence[LedgerEntry],
  new: Sequence[LedgerEntry],
  command: str,
) -> None:
  """Refuses charges that a cap does not cover, or that would exceed it.

  InputError: says with which command, but for its numbers, the cap is raised.
  """
  names = " and ".join(dict.fromkeys(charge.description for charge in new))
  # What has no noise has no μ², and would count as nothing.
  if any(charge.mu_squared is None for charge in new):
    raise InputError(
      f"{names}: the cap of {dataset!r}, {cap}, covers nothing that is NOT"
      " PRIVATE; leave it out, or use a data set without a cap."
    )
  # Fractions: a cap is neither broken by a rounding error nor missed by one.
  already_spent = spent(old)
  if spent(new) > cap.mu_squared - already_spent:
    needed = accounting.epsilon_of(
      accounting.sum_mu_squared([already_spent, spent(new)]), cap.delta
    )
    raise InputError(
      f"{names} would break the cap of {dataset!r}, {cap}:"
      f" {describe_remaining(cap, already_spent)}. Ask for less, or raise the"
      " cap (that is recorded, and a raised cap is no proven bound):"
      f" {command} --max-epsilon {accounting.format_rounded_up(needed)}"
      f" --max-delta {accounting.format_rounded_up(cap.delta)}"
    )


def _budget_command(ledger: Transaction, cache: str) -> str:
  """The command that shows the budget of a cache's data set in this ledger."""
  command = f"oneshot-dp budget --cache {shlex.quote(cache)}"
  if not is_default_ledger(ledger.path):
    command += f" --ledger {shlex.quote(str(ledger.path))}"
  return command
