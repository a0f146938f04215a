"""`oneshot-dp train`."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.pipeline.commands.flags import HeadFlags, LedgerDir, OnHosts
from oneshot_dp.pipeline.shell.answer import Answer

if TYPE_CHECKING:
  from oneshot_dp.extract.cache.reader import FeatureCache
  from oneshot_dp.linear_dp.rows.hosts import Hosts
  from oneshot_dp.pipeline.training.train_heads import Training

_AUTO = HeadConfig(head="auto")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(HeadFlags):
  """Train one differentially private head from a cache.

  By default the most accurate that the cache allows (auto); --head lamb is the
  paper's single step. One line says which it is, why, and what the other would
  cost, before anything is charged.

  Example: oneshot-dp train --cache caches/train --epsilon 4 --delta 1e-6
  --out heads/epsilon-4
  """

  cache: Path
  """The private training cache."""
  epsilon: float
  """Privacy budget of this head; smaller is more private."""
  out: Path
  """Directory of the head, not there yet."""
  training: Annotated[HeadConfig, arg(name="")] = _AUTO
  start: Path | None = None
  """Public weights that auto starts from, at no privacy cost: an npz with one
  vector for each class, by its name (a text tower's embeddings of the names),
  a private head of another data set, or a head.safetensors of public data, of
  the same classes in the same order. No function of the private rows."""
  ledger_dir: LedgerDir = None
  hosts: OnHosts = None


def run(flags: Flags) -> Answer:
  """Trains it."""
  from oneshot_dp.pipeline.training.hosts import on_hosts

  return on_hosts(flags, functools.partial(_train, flags))


def _train(flags: Flags, hosts: "Hosts") -> Answer:
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.linear_dp.heads.choice import choose_head, in_a_line
  from oneshot_dp.pipeline.runs import output_dir
  from oneshot_dp.pipeline.training.cache_rows import cache_rows
  from oneshot_dp.pipeline.training.public_rows import find_public_rows
  from oneshot_dp.pipeline.training.public_start import read_start
  from oneshot_dp.pipeline.training.train_heads import (
    Training,
    cache_ledger,
    cache_trainer,
    plan_heads,
  )

  output_dir.check_absent(flags.out)
  cache = open_cache(flags.cache)
  start = read_start(flags.start, cache) if flags.start else None
  if flags.start and start:
    ledger = cache_ledger(cache, flags.ledger_dir)
    ledger.check_not_published(flags.start, start.sha256)
  rows = cache_rows(cache)
  choice = choose_head(flags.training, rows)
  config = choice.config
  plan = plan_heads(config, rows.num_examples, (flags.epsilon,), flags.privacy)
  public = find_public_rows(
    cache, **vars(flags.public), ledger_dir=flags.ledger_dir
  )
  trainer = cache_trainer(
    cache,
    [config],
    flags.max_rows_per_unit,
    public=public,
    start=start,
    hosts=hosts,
  )
  training = Training(
    trainer=trainer, plan=plan, note=in_a_line(choice, plan, rows)
  )
  return deliver(cache, training, flags.privacy, flags.out, flags.ledger_dir)


def deliver(
  cache: "FeatureCache",
  training: "Training",
  privacy_config: PrivacyConfig,
  out: Path,
  ledger_dir: Path | None,
) -> Answer:
  """Trains the one head of a training, and writes it."""
  from oneshot_dp.linear_dp.accounting.gaussian import printable
  from oneshot_dp.pipeline.ledger.interrupted import says_what_was_charged
  from oneshot_dp.pipeline.runs import output_dir
  from oneshot_dp.pipeline.saved_head.directory import (
    bytes_of,
    head_bytes,
    write_head,
  )
  from oneshot_dp.pipeline.saved_head.make_receipt import how_bounded
  from oneshot_dp.pipeline.training.record import Record
  from oneshot_dp.pipeline.training.train_heads import cache_ledger, train_all

  ledger = cache_ledger(cache, ledger_dir)
  with (
    says_what_was_charged(ledger, out=out),
    output_dir.reserved(out, goes_on=True) as here,
  ):
    here.make_room(head_bytes(cache.info))
    parts = [(training.trainer, training.plan)]
    seed, info = privacy_config.noise_seed, cache.info
    record = Record.find(here.record, ledger, parts, seed, info)
    (trained,) = train_all(
      cache,
      [training],
      privacy_config,
      ledger_dir=ledger_dir,
      record=record,
    )
    with output_dir.whole_directory(out) as directory:
      receipt = write_head(directory, trained, cache.info)
      ledger.publish(bytes_of(directory))
  privacy, mechanism = receipt["privacy"], receipt["mechanism"]
  text = (
    f"{out}: epsilon = {printable(privacy['epsilon'])} at delta ="
    f" {printable(privacy['delta'])} ({privacy['neighboring_relation']}), noise"
    f" multiplier {privacy['noise_multiplier']:.4f}, noise from"
    f" {privacy['noise_source']}"
  )
  if cache.info.has_units:
    bound = how_bounded(mechanism["clipped"], mechanism["rows_per_unit"])
    text += f"\nprivacy unit: {cache.info.privacy_unit}; of its rows, {bound}"
  return Answer(text=text, facts={"out": out, "receipt": receipt})
