"""Requests: what a command asks for, once its flags are read.

A command turns its flags into one of these, and runs take nothing else: so the
demo, an audit and a person's script ask in the same words as the command line.
Nothing is opened or checked here; `runs.plan` and `runs.evaluation` do that.
"""

import dataclasses
from pathlib import Path

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import WHOLE, Part


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalSet:
  """Labeled rows on which the heads of a run are scored.

  Attributes:
    cache: the folder of the test cache.
    part: the rows of it that are scored.
    private_epsilon: ε that is charged for noisy accuracies, where the labels
      are private; None where they are public, and accuracies exact.
    allow_duplicates: accept that up to half of the rows are private rows.
  """

  cache: Path
  part: Part = WHOLE
  private_epsilon: float | None = None
  allow_duplicates: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRequest:
  """Heads to train on one private cache, and where to write them.

  Attributes:
    cache: the folder of the private training cache.
    part: the rows of it that are trained on.
    heads: the kinds of head, each once.
    epsilons: the budgets; each kind and draw gives a head for each of them.
    delta: δ of every guarantee of the run.
    out: the folder to write.
    start: an npz file of public vectors by class name, to start from.
    unlabeled: the folder of a cache of public rows, to learn from as well.
    balanced: weight all classes equally.
    parent: an earlier head to continue from.
    num_draws: independent draws of noise; each is charged.
    baseline: also train each kind without noise, which is NOT PRIVATE.
    eval_set: what the heads are scored on; None writes a single head.
    ledger: the ledger's file; None is the default one.
    allow_weak_privacy: allow δ ≥ 1/n and ε > 20.
    noise_seed: seed of reproducible noise, which is NOT PRIVATE.
    hosts: how this host finds the others, as `Hosts.join` takes it.
    dry_run: check everything and state the cost, but charge nothing.
  """

  cache: Path
  part: Part = WHOLE
  heads: tuple[HeadName, ...]
  epsilons: tuple[float, ...]
  delta: float
  out: Path
  start: Path | None = None
  unlabeled: Path | None = None
  balanced: bool = False
  parent: Path | None = None
  num_draws: int = 1
  baseline: bool = False
  eval_set: EvalSet | None = None
  ledger: Path | None = None
  allow_weak_privacy: bool = False
  noise_seed: int | None = None
  hosts: str | None = None
  dry_run: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRequest:
  """One saved head to score on a labeled cache.

  Attributes:
    head: the folder of the head.
    eval_set: the labeled rows.
    delta: δ of the noisy accuracies, where the labels are private.
    ledger: the ledger's file; None is the default one.
    allow_weak_privacy: allow δ ≥ 1/n and ε > 20.
    noise_seed: seed of reproducible noise, which is NOT PRIVATE.
    dry_run: check everything and state the cost, but charge nothing.
  """

  head: Path
  eval_set: EvalSet
  delta: float | None = None
  ledger: Path | None = None
  allow_weak_privacy: bool = False
  noise_seed: int | None = None
  dry_run: bool = False

  @property
  def place(self) -> Path:
    """The name by which the ledger knows evaluations of the head."""
    return self.head.resolve() / "evaluation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditRequest:
  """A claim (head, ε, δ) to attack with canaries.

  Attributes:
    head: the kind of head.
    epsilon: the claimed ε.
    delta: the claimed δ.
    balanced: weight all classes equally, as in training.
    cache: private rows among which the canaries go, in one run that is
      charged; None attacks synthetic rows, without a charge.
    part: the rows of the cache that are used.
    ledger: the ledger's file; None is the default one.
    canaries: canaries of one run; None is for the audit to choose.
    allow_weak_privacy: allow δ ≥ 1/n and ε > 20.
  """

  head: HeadName
  epsilon: float
  delta: float
  balanced: bool = False
  cache: Path | None = None
  part: Part = WHOLE
  ledger: Path | None = None
  canaries: int | None = None
  allow_weak_privacy: bool = False
